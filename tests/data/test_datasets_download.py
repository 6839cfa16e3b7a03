"""Downloads, against an HTTPS server on this machine with a certificate made for the occasion."""

import hashlib

import pytest
import trustme

from gcn_lpa.data import datasets as _download
from gcn_lpa.data.datasets import download

CONTENT = b"some bytes" * 1000
SHA256 = hashlib.sha256(CONTENT).hexdigest()


def fetch(url, path, expected=SHA256):
    def check(received):
        if hashlib.sha256(received).hexdigest() != expected:
            raise ValueError("its sha256 is another")

    download(url, path, check)


@pytest.fixture(autouse=True)
def file(server):
    (server.folder / "file").write_bytes(CONTENT)


def test_a_file_that_checks_is_moved_into_place(server, tmp_path):
    path = tmp_path / "new folder" / "file"
    fetch(f"{server.url}/file", path)
    assert path.read_bytes() == CONTENT
    assert list(path.parent.iterdir()) == [path]


def test_a_file_with_another_hash_is_refused(server, tmp_path):
    with pytest.raises(ValueError, match="its sha256 is"):
        fetch(f"{server.url}/file", tmp_path / "got" / "file", expected="0" * 64)
    assert not (tmp_path / "got").exists()


def test_a_file_that_did_not_check_leaves_the_old_one_alone(server, tmp_path):
    (tmp_path / "file").write_bytes(b"old")
    with pytest.raises(ValueError, match="its sha256 is"):
        fetch(f"{server.url}/file", tmp_path / "file", expected="0" * 64)
    assert (tmp_path / "file").read_bytes() == b"old"


def test_an_unknown_authority_is_refused(server, tmp_path, monkeypatch):
    trustme.CA().cert_pem.write_to_path(tmp_path / "other.pem")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "other.pem"))
    with pytest.raises(OSError, match="CERTIFICATE_VERIFY_FAILED"):
        fetch(f"{server.url}/file", tmp_path / "got" / "file")
    assert not (tmp_path / "got").exists()


def test_a_certificate_for_another_name_is_refused(server, tmp_path):
    with pytest.raises(OSError, match="IP address mismatch"):
        fetch(f"https://127.0.0.1:{server.server_port}/file", tmp_path / "file")


@pytest.mark.parametrize("elsewhere", ["http://localhost:1/file", "file:///etc/hostname", "ftp://localhost/file"])
def test_no_redirect_leads_away_from_https(server, tmp_path, elsewhere):
    server.elsewhere = elsewhere
    with pytest.raises(OSError, match=r"unknown url type|not allowed"):
        fetch(f"{server.url}/redirect", tmp_path / "file")
    assert not (tmp_path / "file").exists()


def test_a_redirect_to_https_is_followed(server, tmp_path):
    server.elsewhere = f"{server.url}/file"
    fetch(f"{server.url}/redirect", tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == CONTENT


def test_a_missing_file_is_an_error(server, tmp_path):
    with pytest.raises(OSError, match="404"):
        fetch(f"{server.url}/nothing", tmp_path / "file")


def test_what_a_killed_download_left_is_removed(server, tmp_path):
    (tmp_path / "got").mkdir()
    (tmp_path / "got" / ".file.abc123.tmp").write_bytes(CONTENT[:100])
    fetch(f"{server.url}/file", tmp_path / "got" / "file")
    assert [path.name for path in (tmp_path / "got").iterdir()] == ["file"]


def test_a_download_that_takes_for_ever_is_given_up(server, tmp_path, monkeypatch):
    monkeypatch.setattr(_download, "MAX_SECONDS", -1)
    with pytest.raises(ValueError, match="was not served within -1 seconds"):
        fetch(f"{server.url}/file", tmp_path / "got" / "file")
    assert not (tmp_path / "got").exists()


def test_a_file_without_end_is_cut_off(server, tmp_path, monkeypatch):
    monkeypatch.setattr(_download, "MAX_BYTES", 100)
    with pytest.raises(ValueError, match="serves more than 100 bytes"):
        fetch(f"{server.url}/file", tmp_path / "got" / "file")
    assert not (tmp_path / "got").exists()
