"""Digits with one label in ten: GCN-LPA beside two classifiers of scikit-learn, on the same labels.

Then a graph of one's own: X is the column of its node ids, and a grid search cannot leak.
"""

import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.semi_supervised import LabelSpreading

from gcn_lpa import GCNLPAClassifier, load

X, y = load_digits(return_X_y=True)
labeled, hidden = train_test_split(np.arange(len(y)), train_size=0.1, stratify=y, random_state=0)
known = y.copy()
known[hidden] = -1

gcn_lpa = GCNLPAClassifier(unlabeled=-1).fit(X, known)
spreading = LabelSpreading(kernel="knn").fit(X, known)
logistic = LogisticRegression(max_iter=1000).fit(X[labeled], y[labeled])
print(f"digits, {len(labeled)} of {len(y)} labelled: accuracy on the others")
print(f"  GCNLPAClassifier    {np.mean(gcn_lpa.transduction_[hidden] == y[hidden]):.3f}")
print(f"  LabelSpreading      {np.mean(spreading.transduction_[hidden] == y[hidden]):.3f}")
print(f"  LogisticRegression  {logistic.score(X[hidden], y[hidden]):.3f}")

club = load("karate")
members = list(club.node_names)
sides = [club.class_names[k] for k in club.y.tolist()]
search = GridSearchCV(GCNLPAClassifier(graph=club, epochs=50), {"gcn_layers": [1, 2, 3]}, cv=4)
search.fit(members, sides)
print(f"karate club: accuracy {search.best_score_:.3f} in cross-validation, with {search.best_params_}")
print(search.best_estimator_.edge_weights_.nlargest(3, "weight").to_string(index=False))
