"""The policy on dotted names: a package is known for its own classes, and each step on the way to a name is judged."""

from __future__ import annotations

import itertools

import pytest

from weighbridge.reports.scan import names
from weighbridge.reports.scan.pickle import denylist

HONEST = (
    "nemo.collections.asr.modules.ConformerEncoder", "torch.nn.Linear", "torch.optim.lr_scheduler.StepLR",
    "pytorch_lightning.callbacks.ModelCheckpoint", "lightning.pytorch.Trainer", "diffusers.models.UNet2DModel",
    "transformers.models.llama.modeling_llama.LlamaModel", "speechbrain.lobes.features.Fbank",
)  # fmt: skip
PREFIXES = ("transformers.utils.hub", "torch.nn.modules.module", "torch.serialization", "random", "nemo.core.classes")
HARMFUL = [f"{m}.{n}" for m, n in denylist.TABLE if n != "*" and "." not in m and not n.startswith("_")]


@pytest.mark.parametrize("name", HONEST)
def test_classes_of_known_packages(name: str) -> None:
    assert names.judge(name) == (True, None)


@pytest.mark.parametrize("prefix", PREFIXES)
def test_a_walk_to_what_does_harm_is_harmful_from_anywhere(prefix: str) -> None:
    for name, dash in itertools.product(HARMFUL, ("", "_")):
        judged = names.judge(f"{prefix}.{dash}{name}")
        assert not judged.is_known
        if not name.rpartition(".")[2][:1].isupper():
            assert judged.harm, name


@pytest.mark.parametrize(
    "name",
    ["transformers.utils.hub.somebody", "transformers.Auto.Model", "transformers._lazy.Model", "transformers", "nemo",
     "torch.hub.Model", "transformersX.Model", "hydra.utils.get_class", "transformers.sp.Popen", "", ".", "a..b",
     "transformers.utils.Path", "transformers.trainer.subprocess.X", "torch.nn.numpy.X", "monai.bundle.ConfigParser"],
)  # fmt: skip
def test_what_is_no_class_of_a_known_package(name: str) -> None:
    assert not names.judge(name).is_known


def test_an_accepted_library_has_its_classes_and_no_way_out() -> None:
    for name in ("sklearn.tree._tree.Tree", "sklearn.svm._classes.SVC"):
        assert names.is_accepted(name, {"sklearn"})
        assert not names.is_accepted(name, {"scipy"})
    for name in ("sklearn.datasets._base.makedirs", "sklearn.utils.os.X", "sklearn.x.GzipFile", "sklearnx.A"):
        assert not names.is_accepted(name, {"sklearn"})
