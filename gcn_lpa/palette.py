"""The colours of every picture: those of Okabe and Ito (2008), which colour-blind readers can tell apart, and a few beside."""

BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
BLUE, RED, PINK = "#0072B2", "#D55E00", "#CC79A7"  # their yellow is left out: it is lost on white
VIOLET, BROWN = "#6A4C93", "#8C5A2B"
GREY = "#8A8A8A"
PALE = "#DDDDDD"  # of what is there and says nothing, such as a node without a label

CLASS_COLORS = (BLUE, ORANGE, GREEN, PINK, SKY, RED, VIOLET, BROWN)  # in the order in which classes take them
SHAPES = ("o", "s", "^", "D", "v", "P", "X", "p", "h")  # of classes, for those who print in grey
