"""Makes the wheel of nanotron-tools for pip, with Python alone: `pip install --no-index` has no build tool to fetch.

pyproject.toml keeps to lines of `name = value` whose values are literals of Python too, as tomllib begins with 3.11.
"""

from __future__ import annotations

import ast
import base64
import configparser
import hashlib
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path

HERE = Path(__file__).resolve().parent
TAG = "py3-none-any"


def project() -> tuple[str, str, configparser.ConfigParser]:
    """Name and version, and the sections of pyproject.toml."""
    parsed = configparser.ConfigParser(interpolation=None, strict=False, delimiters=("=",))
    parsed.optionxform = str  # type: ignore[assignment, method-assign]
    parsed.read_string((HERE / "pyproject.toml").read_text(encoding="utf-8"))
    stated = (HERE / "nanotron_tools/__init__.py").read_text(encoding="utf-8")
    version = re.search(r'^__version__ = "([^"]+)"', stated, re.M)
    assert version is not None
    return ast.literal_eval(parsed["project"]["name"]), version[1], parsed


def metadata(name: str, version: str, parsed: configparser.ConfigParser) -> str:
    values = {key: ast.literal_eval(text) for key, text in parsed["project"].items()}
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", f"Summary: {values['description']}",
             f"License: {values['license']}", f"Requires-Python: {values['requires-python']}"]
    lines += [f"Requires-Dist: {each}" for each in values["dependencies"]]
    for extra, text in parsed["project.optional-dependencies"].items():
        lines.append(f"Provides-Extra: {extra}")
        for each in ast.literal_eval(text):
            package, _, marker = each.partition(";")
            condition = f"({marker.strip()}) and extra == '{extra}'" if marker else f"extra == '{extra}'"
            lines.append(f"Requires-Dist: {package.strip()}; {condition}")
    return "\n".join(lines) + "\n"


def write_wheel(folder: str, files: Mapping[str, bytes]) -> str:
    """The wheel of these files, by their names in it; its name."""
    name, version, parsed = project()
    info = f"{name.replace('-', '_')}-{version}"
    scripts = [f"{command} = {ast.literal_eval(place)}\n" for command, place in parsed["project.scripts"].items()]
    about = {"METADATA": metadata(name, version, parsed), "entry_points.txt": "[console_scripts]\n" + "".join(scripts),
             "WHEEL": f"Wheel-Version: 1.0\nGenerator: make_wheel\nRoot-Is-Purelib: true\nTag: {TAG}\n"}
    contents = {**files, **{f"{info}.dist-info/{each}": text.encode() for each, text in about.items()}}
    record = ""
    with zipfile.ZipFile(Path(folder) / f"{info}-{TAG}.whl", "w", zipfile.ZIP_DEFLATED) as wheel:
        for place, data in contents.items():
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record += f"{place},sha256={digest},{len(data)}\n"
            wheel.writestr(place, data)
        wheel.writestr(f"{info}.dist-info/RECORD", record + f"{info}.dist-info/RECORD,,\n")
    return f"{info}-{TAG}.whl"


def build_wheel(folder: str, settings: object = None, metadata_folder: object = None) -> str:
    """What pip calls for `pip install ./tools`."""
    package = HERE / "nanotron_tools"
    return write_wheel(folder, {f"nanotron_tools/{path.name}": path.read_bytes()
                                for path in (*sorted(package.glob("*.py")), package / "py.typed")})


def build_editable(folder: str, settings: object = None, metadata_folder: object = None) -> str:
    """What pip calls for `pip install -e ./tools`."""
    return write_wheel(folder, {"nanotron_tools.pth": f"{HERE}\n".encode()})
