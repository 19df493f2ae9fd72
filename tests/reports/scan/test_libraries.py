"""`--allow-library`: the classes of a package that the user trusts are data, and nothing else that a file names."""

from __future__ import annotations

import json
import pickle
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from tests.reports.scan import vectors as v

import weighbridge as wb
from weighbridge.base.errors import UsageError
from weighbridge.cli.main import main


@pytest.fixture
def forest(monkeypatch: pytest.MonkeyPatch) -> Any:
    """An estimator as scikit-learn pickles one: classes with plain attributes, arrays, a tree made by a call."""
    classes: dict[str, Any] = {}
    for path in ("sklearn.ensemble._forest.RandomForestClassifier", "sklearn.tree._classes.DecisionTreeClassifier",
                 "sklearn.tree._tree.Tree"):  # fmt: skip
        module, _, name = path.rpartition(".")
        made = type(name, (), {"__module__": module})
        place = ModuleType(module)
        setattr(place, name, made)
        monkeypatch.setitem(sys.modules, module, place)
        classes[name] = made
    for package in ("sklearn", "sklearn.ensemble", "sklearn.tree"):
        monkeypatch.setitem(sys.modules, package, ModuleType(package))
    tree, inner, outer = classes["Tree"](), classes["DecisionTreeClassifier"](), classes["RandomForestClassifier"]()
    tree.nodes = np.zeros(3, [("left", "<i8"), ("threshold", "<f8")])
    inner.__dict__.update(tree_=tree, max_depth=3, classes_=np.array([0, 1]), _sklearn_version="1.5.0")
    outer.__dict__.update(estimators_=[inner], n_features_in_=4, estimator_params=("a",), ccp_alpha=0.0)
    return outer


@pytest.mark.parametrize("protocol", range(6))
def test_an_estimator_is_accepted_with_its_library(forest: Any, protocol: int, tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "model.pkl"
    path.write_bytes(pickle.dumps(forest, protocol))
    assert wb.scan(path).verdict == "unknown-code"
    assert main(["scan", str(path)]) == 1
    assert "--allow-library sklearn" in capsys.readouterr().out
    report = wb.scan(path, allow_library=["sklearn"])
    assert report.verdict == "data-only"
    assert "scan/accepted" in {f.rule for f in report.files[0].findings}
    assert main(["scan", str(path), "--allow-library", "sklearn", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["verdict"] == "data-only"
    assert wb.scan(path, allow_library=["scipy"]).verdict == "unknown-code"


HOSTILE = {
    "another package": v.g("own_package", "Thing") + b")\x81",
    "what does harm": v.SYSTEM,
    "a walk out of the library": v.sg("sklearn.utils", "os.system") + v.s("true") + b"\x85R",
    "a module of the library's": v.g("sklearn.utils.os", "system") + v.s("true") + b"\x85R",
    "a function of the library's": v.g("sklearn.datasets._base", "makedirs") + v.s("x") + b"\x85R",
    "a class that the library imports": v.g("sklearn.datasets._base", "GzipFile") + v.s("x") + v.s("wb") + b"\x86R",
    "its vendored joblib": v.g("sklearn.externals.joblib", "Memory") + b")R",
    "a computed call": v.g("sklearn.svm", "SVC") + b")R)R",
    "a prefix of the name": v.g("sklearnx", "SVC") + b")R",
}


@pytest.mark.parametrize("what", HOSTILE)
def test_nothing_else_is_accepted(what: str, tmp_path: Path) -> None:
    path = tmp_path / "model.pkl"
    for protocol in (2, 4):
        path.write_bytes(v.p(v.g("sklearn.svm", "SVC") + b")\x810" + HOSTILE[what], protocol))
        assert wb.scan(path, allow_library=["sklearn"]).verdict not in ("data-only", "not-scanned")


def test_of_too_many_findings_none_is_accepted_unseen(tmp_path: Path) -> None:
    path = tmp_path / "model.pkl"
    names = b"".join(v.g("sklearn.a", f"C{i}") + b"0" for i in range(1500))
    for tail, verdict in ((b"N", "data-only"), (v.g("own_package", "Thing"), "unknown-code")):
        path.write_bytes(v.p(names + tail))
        assert wb.scan(path, allow_library=["sklearn"]).verdict == verdict


@pytest.mark.parametrize("name", ["", "a b", "../x", "sklearn."])
def test_what_is_no_package(name: str, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(v.GOOD)
    with pytest.raises(UsageError, match="not the name of a package"):
        wb.scan(tmp_path, allow_library=[name])
