"""Outside packages are made real for these tests: a module and a `.dist-info` folder on `sys.path`."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from scorers.admission.contract import AdmissionRule
from scorers.contract import Filter, Needs, Picker, Scorer, Unit
from scorers.prefix_overlap import PrefixOverlap
from scorers.registry import BUILTINS, PluginError, installed_plugins, load_registry

MODULE = '''
from dataclasses import dataclass
from scorers.contract import Scorer, Unit

@dataclass
class Hottest(Scorer):
    """Prefers hot ones."""
    unit = Unit.POINTS
    degrees: float = 20.0
    def score(self, view):
        return [0.5] * len(view.rows)

@dataclass
class Unitless(Scorer):
    pass

class Undecorated(Scorer):
    unit = Unit.RAW

@dataclass
class Greedy(Scorer):
    unit = Unit.RAW
    weight: float = 1.0

not_a_class = 7
'''


class Site:
    """A folder on `sys.path` that packages are installed into."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def install(self, package: str, group: str, **points: str) -> None:
        (self.path / f"{package}_plugins.py").write_text(MODULE)
        info = self.path / f"{package}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        lines = [f"{name} = {package}_plugins:{attribute}" for name, attribute in points.items()]
        (info / "entry_points.txt").write_text("\n".join([f"[{group}]", *lines, ""]))
        installed_plugins.cache_clear()


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.syspath_prepend(str(tmp_path))
    yield Site(tmp_path)
    installed_plugins.cache_clear()


def test_built_ins_are_built_with_their_parameters() -> None:
    assert load_registry().build(Scorer, "prefix_overlap", {"cpu": 1, "expected": False}) == PrefixOverlap(
        cpu=1.0, expected=False
    )


def test_every_built_in_file_is_registered() -> None:
    """A scorer that is not in the list does not exist: a new file without its line is a mistake."""
    import scorers

    machinery = {"__init__", "build", "contract", "registry", "parameters", "chance", "polled"}
    machinery |= {"blocks", "memory", "prefix_trees", "streams", "ttft"}  # what several share
    machinery |= {"headroom", "row_loops"}  # what is compiled of single ones
    folder = Path(scorers.__file__).parent
    files = {path.stem for part in (folder, folder / "rivals") for path in part.glob("*.py")} - machinery
    assert files == {name for kind, named in BUILTINS.items() if kind is not AdmissionRule for name in named}
    machinery = {"__init__", "contract", "bindings", "engine_room", "live_programs", "return_probability"}
    rules = {path.stem for path in (Path(scorers.__file__).parent / "admission").glob("*.py")} - machinery
    assert rules == set(BUILTINS[AdmissionRule])


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        (
            "prefix_overlp",
            "unknown scorer 'prefix_overlp' (did you mean 'prefix_overlap'?)",
        ),
        ("zzz", "unknown scorer 'zzz'; known names: aibrix_prefix, consistent_hash, "),
        ("best", "unknown scorer 'best'"),  # is a picker
    ],
)
def test_unknown_names_get_the_nearest_or_all(name: str, complaint: str) -> None:
    with pytest.raises(PluginError) as refusal:
        load_registry().build(Scorer, name, {})
    assert str(refusal.value).startswith(complaint)


@pytest.mark.parametrize(
    ("params", "complaint"),
    [
        (
            {"gpuu": 1},
            "scorer prefix_overlap: unknown parameter 'gpuu' (did you mean 'gpu'?); it has gpu, cpu",
        ),
        ({"gpu": "x"}, "scorer prefix_overlap: parameter 'gpu': found 'x', wanted a number"),
        ({"gpu": 2}, "scorer prefix_overlap: gpu: found 2.0, wanted a share from 0 to 1"),
    ],
)
def test_refused_parameters_name_the_plug_in(params: dict[str, object], complaint: str) -> None:
    with pytest.raises(PluginError) as refusal:
        load_registry().build(Scorer, "prefix_overlap", params)
    assert str(refusal.value).startswith(complaint)


def test_an_outside_package_adds_a_scorer(site: Site) -> None:
    site.install("sunny", "warmroute.scorers", hottest="Hottest")
    registry = load_registry()
    assert "hottest" in registry.names(Scorer)
    assert "hottest" not in registry.names(Filter)
    built = registry.build(Scorer, "hottest", {"degrees": 30})
    assert type(built).__module__ == "sunny_plugins"
    assert (built.unit, built.needs) == (Unit.POINTS, Needs.NONE)


def test_a_name_is_given_once(site: Site) -> None:
    site.install("first", "warmroute.scorers", hottest="Hottest")
    site.install("second", "warmroute.scorers", hottest="Hottest")
    with pytest.raises(PluginError, match=r"scorer 'hottest' is offered twice: by (first|second) .* and by"):
        load_registry()


def test_a_built_in_name_cannot_be_taken(site: Site) -> None:
    site.install("rude", "warmroute.pickers", best="Hottest")
    with pytest.raises(PluginError, match="picker 'best' is offered twice: by Warmroute itself and by rude"):
        load_registry()


@pytest.mark.parametrize(
    ("attribute", "complaint"),
    [
        ("Missing", "scorer 'odd' of odd .* cannot be imported: module 'odd_plugins' has no attribute 'Missing'"),
        ("not_a_class", r"scorer 'odd': 7 is not a subclass of scorers\.contract\.Scorer"),
        ("Unitless", "scorer 'odd': Unitless must declare its unit"),
        ("Undecorated", "scorer 'odd': Undecorated must be a dataclass"),
        ("Greedy", "scorer 'odd': a parameter may not be called 'weight', policy files use it"),
    ],
)
def test_a_broken_package_harms_only_its_users(site: Site, attribute: str, complaint: str) -> None:
    site.install("odd", "warmroute.scorers", odd=attribute)
    registry = load_registry()
    assert registry.build(Picker, "best", {}) is not None
    with pytest.raises(PluginError, match=complaint):
        registry.build(Scorer, "odd", {})
