"""The colours of every picture: those of Okabe and Ito (2008), which colour-blind readers can tell apart, and two greys."""

BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
YELLOW, BLUE, RED, PINK = "#F0E442", "#0072B2", "#D55E00", "#CC79A7"
GREY = "#8A8A8A"
PALE = "#DDDDDD"  # of what is there and says nothing, such as a node without a label

OKABE_ITO = (BLUE, ORANGE, GREEN, PINK, SKY, RED, YELLOW, BLACK)  # in the order in which classes take them
