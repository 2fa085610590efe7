"""The scripts and notebooks of examples/ that need no process of their own, and the programs in C and C++.

Those that are run as programs are in users/, and what microscopy.py does with values in test_example_microscopy.py.
"""

from __future__ import annotations

import ast
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import dali_zarr
import nbformat
import numpy as np
import pytest
import zarr
from support.notebooks import texts
from support.pipelines import run_script, why_no_gpu

EXAMPLES = Path(__file__).parents[1] / "examples"
sys.path.insert(0, str(EXAMPLES))


@pytest.fixture
def stores(small_stores) -> Path:
    return small_stores


def run(name: str, monkeypatch, capsys, *words: object) -> list[str]:
    """What a script prints, run in this process."""
    monkeypatch.setattr(sys, "argv", [name, *map(str, words)])
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    return capsys.readouterr().out.splitlines()


def test_all_are_run():
    """By one of the tests: by this one, or those that are named above."""
    tests = [Path(__file__), *(Path(__file__).parent / "users").glob("test_*.py")]
    here = "".join(file.read_text() for file in tests)
    parts = {"era5_demo", "picture", "synthetic_weather", "unet", "unet_jax"}  # of era5_unet and era5_unet_jax
    for file in [*EXAMPLES.glob("*.py"), *EXAMPLES.glob("*/*.ipynb")]:
        assert file.stem in parts or f'"{file.stem}' in here or file.stem in ("small_stores", "microscopy"), file


@pytest.mark.parametrize("name", ["era5_unet", "era5_unet_jax"])
@pytest.mark.timeout_s(600)
@pytest.mark.filterwarnings("ignore")
def test_the_demo(name, tmp_path, monkeypatch, capsys):
    """Of a size that takes seconds: `make demo` takes minutes."""
    pytest.importorskip("jax")
    # Later tests need the number that there was.
    monkeypatch.setattr(pytest.importorskip("torch"), "set_num_threads", lambda count: None)
    size = ["--device", "cpu", "--hours", 60, "--grid", 16, 32, "--epochs", 2, "--output", tmp_path]
    wrote, begins, *epochs, speed, test, picture = run(name, monkeypatch, capsys, *size)
    assert wrote.startswith(f"wrote {tmp_path}/era5.zarr: 6 variables, 60 hours, 16 x 32, ")
    assert begins == "training a U-Net of 85 thousand weights on the CPU: 51 hours to train on, 9 to test on"
    first, last = (float(epoch.split("RMSE ")[1].split()[0]) for epoch in epochs)
    assert last < first
    assert "samples/s; training waited for data " in speed and test.startswith("test RMSE 0.")
    assert picture == f"picture: {tmp_path}/era5_unet.png"
    assert (tmp_path / "era5_unet.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.timeout_s(600)
def test_both_networks_of_the_demo_are_the_same():
    torch, jax = pytest.importorskip("torch"), pytest.importorskip("jax")
    import unet
    import unet_jax

    torch.manual_seed(0)
    model = unet.UNet(6)
    weights = unet_jax.initial(0, 6)
    torch.nn.init.normal_(model.head.weight)
    found = {"head": {"kernel": model.head.weight[:, :, 0, 0].T, "bias": model.head.bias}}
    for name in ("down0", "down1", "bottom", "up1", "up0"):
        for i, layer in enumerate(getattr(model, name)):
            kernel, norm = layer.conv.weight.permute(2, 3, 1, 0), layer.norm
            found[f"{name}.{i}"] = {"kernel": kernel, "bias": layer.conv.bias, "scale": norm.weight, "shift": norm.bias}
    assert jax.tree.map(np.shape, found) == jax.tree.map(np.shape, weights)
    fields = np.random.default_rng(0).standard_normal((2, 6, 16, 32), "float32")
    expected = model(torch.from_numpy(fields)).detach().numpy()
    arrays = jax.tree.map(lambda tensor: tensor.detach().numpy(), found)
    np.testing.assert_allclose(jax.jit(unet_jax.forecast)(arrays, fields), expected, atol=1e-4)


def test_the_demo_has_the_versions_of_the_tests():
    lines = {line for line in (EXAMPLES / "requirements-demo.txt").read_text().splitlines() if not line.startswith("#")}
    assert lines <= set((EXAMPLES.parent / "tests/requirements.txt").read_text().splitlines())


def test_feed_pytorch(stores, monkeypatch, capsys):
    lines = run("feed_pytorch", monkeypatch, capsys, stores / "hours.zarr", "t2m", "lsm")
    assert len(lines) == 3 and lines[0].startswith("torch.Size([16, 2, 12, 20]) ")


@pytest.mark.skipif(bool(why_no_gpu()), reason="its pipeline is for the GPU; the same on the CPU is in docs/getting-started.md")
@pytest.mark.filterwarnings("ignore")
def test_feed_pipeline(stores, monkeypatch, capsys):
    lines = run("feed_pipeline", monkeypatch, capsys, stores / "hours.zarr", "t2m", "lsm")
    assert len(lines) == 3 and lines[0] == "torch.Size([16, 2, 12, 20]) cuda:0"


def test_microscopy(stores, monkeypatch, capsys):
    lines = run("microscopy", monkeypatch, capsys, stores / "image.zarr")
    assert len(lines) == 4
    # Counts from 0 to 8 and 100 more in the second channel; rotations put zeros into the corners.
    first, second = map(float, lines[0].removeprefix("image (2, 16, 32, 32), means of its channels ").split(", "))
    assert 3 < first < 5 and 90 < second < 105
    assert lines[1].startswith("label (16, 32, 32), 8 cells, ")


def test_geotiff(stores, tmp_path, monkeypatch, capsys):
    shutil.copy(stores / "scene.tif", tmp_path)
    lines = run("geotiff", monkeypatch, capsys, tmp_path / "scene.tif")
    losses = [float(line.removeprefix(f"epoch {k}: 16 batches, loss ")) for k, line in enumerate(lines, 1)]
    assert len(losses) == 3 and losses[2] < losses[0] / 2


def test_robotics(stores, monkeypatch, capsys):
    (line,) = run("robotics", monkeypatch, capsys, stores / "pusht.zarr")
    assert line.startswith("(64, 2, 16, 16, 3) (64, 16, 2) 0.")


@pytest.mark.filterwarnings("ignore")
def test_camera(tmp_path, monkeypatch, capsys):
    """The policy learns, also for episodes that it hasn't seen."""
    pytest.importorskip("imagecodecs")
    lines = run("camera", monkeypatch, capsys, tmp_path / "camera.zarr", "--epochs", "3")
    line = re.compile(r"epoch \d: 29 batches, loss (\S+), of episodes that it hasn't seen (\S+) pixels squared")
    told = [line.fullmatch(one) for one in lines]
    losses, others = zip(*((float(one[1]), float(one[2])) for one in told if one), strict=True)
    assert len(losses) == 3 and losses[2] < losses[0] / 2 and others[2] < 0.8 * others[0]


@pytest.mark.filterwarnings("ignore")
def test_xbatcher_switch(stores, monkeypatch, capsys):
    """With the store that its recipe names; users/test_xbatcher_switch.py has the rest."""
    pytest.importorskip("xbatcher")
    lines = run("xbatcher_switch", monkeypatch, capsys, stores / "days.zarr")
    assert len(lines) == 6 and all(line.endswith(" same") for line in lines)


@pytest.mark.filterwarnings("ignore")
def test_single_cells(stores, monkeypatch, capsys):
    lines = run("single_cells", monkeypatch, capsys, stores / "cells.zarr")
    assert len(lines) == 3 and all(line.startswith("(512, 500) with ") for line in lines)


def test_jax_devices(stores, monkeypatch, capsys):
    jax = pytest.importorskip("jax")
    lines = run("jax_devices", monkeypatch, capsys, stores / "hours.zarr")
    assert len(lines) == 4 and lines[0].startswith(f"(8, 12, 20) on {len(jax.devices())} devices, error ")


def test_jax_train(stores, tmp_path, monkeypatch, capsys):
    """It learns, and a run that was stopped after two epochs goes on as one that wasn't."""
    jax = pytest.importorskip("jax")
    if 8 % len(jax.devices()):
        pytest.skip(f"its batches of 8 can't be divided among {len(jax.devices())} devices")

    def train(checkpoint: str, epochs: int) -> list[str]:
        return run("jax_train", monkeypatch, capsys, stores / "days.zarr", tmp_path / checkpoint, "--epochs", epochs)

    def losses(lines: list[str]) -> np.ndarray:
        return np.array([[line.split()[i] for i in (1, 3, 5)] for line in lines], "float64")

    whole = losses(train("whole.npz", 4))
    stopped, further = train("parts.npz", 2), train("parts.npz", 4)
    assert whole[:, 0].tolist() == [0, 1, 2, 3] and len(stopped) == len(further) == 2
    np.testing.assert_allclose(losses(stopped + further), whole, rtol=1e-4)
    assert whole[-1, 1] < 0.95 * whole[0, 1] and whole[-1, 2] < 0.95 * whole[0, 2]


def test_dynamic_mode(stores, monkeypatch, capsys):
    lines = run("dynamic_mode", monkeypatch, capsys, stores / "hours.zarr")
    assert len(lines) == 5 and lines[0].startswith("8 samples, largest change ")


SERVED = """
import sys
import numpy as np
from nvidia.dali import plugin_manager
from nvidia.dali.pipeline import Pipeline

plugin_manager.load_library(sys.argv[1])
pipe = Pipeline.deserialize(filename=sys.argv[2], batch_size=8, num_threads=1, device_id=None)
pipe.build()
for samples in ([30, 7, 7], [2]):
    pipe.feed_input("SAMPLE", [np.array([sample]) for sample in samples])
np.save(sys.argv[3], pipe.run()[0].as_array())
assert len(pipe.run()[0]) == 1
assert "dali_zarr" not in sys.modules
"""


def test_triton_pipeline(stores, tmp_path, monkeypatch, capsys):
    """A process that has only the library reads the model file, as Triton's backend does."""
    (line,) = run("triton_pipeline", monkeypatch, capsys, stores / "hours.zarr", tmp_path)
    assert line.endswith(f"plugin_libs={dali_zarr.plugin_path()}")
    run_script(SERVED, str(dali_zarr.plugin_path()), str(tmp_path / "fields/1/model.dali"), str(tmp_path / "served.npy"))
    stored = zarr.open_array(stores / "hours.zarr" / "t2m")[:][[30, 7, 7]]
    np.testing.assert_allclose(np.load(tmp_path / "served.npy"), stored - np.float32(273.15), rtol=1e-6)
    assert "SAMPLE" in (tmp_path / "fields/config.pbtxt").read_text()


@pytest.mark.parametrize("name", ["choosing_chunks.ipynb", "episodes.ipynb"])
def test_notebooks(name, monkeypatch, capsys):
    """The cells, in this process; first_look.ipynb is run in a kernel."""
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    notebook = nbformat.read(EXAMPLES / "notebooks" / name, as_version=4)
    nbformat.validate(notebook)
    names: dict[str, Any] = {}
    shown: list[Any] = []
    for cell in notebook.cells:
        if cell.cell_type == "code":
            tree = ast.parse(cell.source)
            last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
            exec(compile(tree, name, "exec"), names)
            if last is not None:
                shown.append(eval(compile(ast.Expression(last.value), name, "eval"), names))
    printed = capsys.readouterr().out
    # What is stored is what it shows today: `python tests/support/notebooks.py` stores it.
    # How much a reader decodes depends on how far ahead it has read.
    for text in [text for text in texts(notebook) if "240 samples of 65 kB" not in text]:
        assert text in printed or text in map(repr, shown)
    if name.startswith("choosing"):
        assert [line.split("amplification ")[1].split(",")[0] for line in printed.splitlines()[:3]] == ["1", "24", "240"]
        assert "use smaller chunks, or larger windows" in printed
        assert printed.count("240 samples of 65 kB; chunks of 0.") == len(names["ways"])
    else:
        assert [14.0, 20.0, 21.0] in shown[0].tolist() and [14.0, 20.0, 21.0] not in shown[1].tolist()
        assert "[1, 4] [20.0, 20.0, 21.0] [False, True, True]" in printed
        assert (shown[2]["count"], round(shown[2]["padded_samples"], 2)) == (3, 0.6)


@pytest.fixture(scope="module", params=["package", "without DALI"])
def prefix(request, tmp_path_factory) -> Path:
    """A folder with include/ and lib/: that of the package, or one that was installed by CMake without DALI's operator."""
    package = dali_zarr.plugin_path().parents[1]
    if request.param == "package":
        return package
    folder = tmp_path_factory.mktemp("without")
    options = {
        "DALI_ZARR_WITH_DALI": "OFF", "DALI_ZARR_LIBRARY": f"{package}/lib/libdali_zarr.so",
        "CMAKE_INSTALL_PREFIX": f"{folder}/prefix", "CMAKE_INSTALL_LIBDIR": "lib",
    }
    words = [f"-D{name}={value}" for name, value in options.items()]
    cmake_("-S", EXAMPLES.parent / "cmake", "-B", folder / "build", *words)
    cmake_("--build", folder / "build")
    cmake_("--install", folder / "build")
    installed = sorted(file.name for file in (folder / "prefix").rglob("*") if file.is_file())
    assert installed == ["dali_zarr.h", "dali_zarrConfig.cmake", "dali_zarrConfigVersion.cmake", "libdali_zarr.so"]
    return folder / "prefix"


def cmake_(*words: object) -> None:
    import cmake

    run_program(Path(cmake.CMAKE_BIN_DIR) / "cmake", *words)


def means(stores: Path, name: str, size: int) -> list[str]:
    """What NumPy finds for batches of an epoch."""
    values = zarr.open_array(stores / "hours.zarr" / name)[:]
    return [f"{values[at : at + size].astype('float64').mean():.3f}" for at in range(0, len(values), size)]


def run_program(*command: object, status: int = 0) -> subprocess.CompletedProcess[str]:
    """Without LD_LIBRARY_PATH: nothing of DALI is found."""
    environment = {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"}
    done = subprocess.run([str(word) for word in command], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stderr
    return done


def test_the_c_program(stores, tmp_path, prefix):
    """Outside of the tree, with the installed header and library, by the command of docs/recipes/c.md."""
    program = tmp_path / "print_batches"
    source = shutil.copy(EXAMPLES / "c" / "print_batches.c", tmp_path)
    strict = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic"]
    paths = [f"-I{prefix}/include", f"-L{prefix}/lib", "-ldali_zarr", f"-Wl,-rpath,{prefix}/lib"]
    run_program("cc", *strict, source, "-o", program, *paths)
    done = run_program(program, stores / "hours.zarr", "t2m", 10)
    assert done.stdout.splitlines() == ["t2m: 40 samples of 960 bytes", *means(stores, "t2m", 10)]
    done = run_program(program, stores / "none.zarr", "t2m", 10, status=1)
    assert done.stderr.startswith("open: zarr_reader: ")


def test_the_cmake_project(stores, tmp_path, prefix):
    """Outside of the tree, by find_package(dali_zarr)."""
    source, build = shutil.copytree(EXAMPLES / "cmake", tmp_path / "source"), tmp_path / "build"
    cmake_("-S", source, "-B", build, f"-DCMAKE_PREFIX_PATH={prefix}")
    cmake_("--build", build)
    spec = {"path": str(stores / "hours.zarr"), "arrays": ["t2m", "time"], "batch_size": 8, "dtype": "float32"}
    done = run_program(build / "channel_means", json.dumps(spec))
    assert done.stdout.splitlines() == [f"{name} {means(stores, name, 8)[0]}" for name in ("t2m", "time")]
    done = run_program(build / "channel_means", "{}", status=1)
    assert done.stderr.startswith("zarr_reader: ")
