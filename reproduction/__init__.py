"""The study of the paper: its tables and figures reproduced, its theorems measured, and a verdict on each claim.

`python -m reproduction PART`, or `python3 run.py reproduce PART`, makes a part; --help lists them. The study imports the library
and is no part of it, nor of its wheel.
"""
