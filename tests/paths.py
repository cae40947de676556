"""Where files of the checkout lie that tests read."""

from pathlib import Path

ROOT = Path(__file__).parents[1]
CONFIGS = ROOT / "configs"
DATA = ROOT / "tests" / "data"
FRAMES = DATA / "frames"
TLS = ROOT / "tests" / "fakes" / "tls"
TOKENIZER = str(ROOT / "router" / "lab" / "emulator" / "data")
