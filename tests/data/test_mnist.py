"""mnist and fashion_mnist: reading a folder, downloading what it lacks, faults."""

from __future__ import annotations

import dataclasses
import hashlib
import http.server
import importlib
import subprocess
import sys
import threading
import traceback

import numpy as np
import pytest

from tinybn.data import fashion_mnist, mnist
from tinybn.errors import ArgumentError, DataError, DownloadError, MissingDependency

module = importlib.import_module("tinybn.data.mnist")  # the attribute is the function


@pytest.fixture
def site(tmp_path, fill_folder):
    """A web server on this machine with a small data set; yields (address, files, requests)."""
    files = fill_folder(tmp_path / "site")
    requests: list[str] = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args):
            super().__init__(*args, directory=str(tmp_path / "site"))

        def log_message(self, format, *args):
            requests.append(self.path)

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/", files, requests
    server.shutdown()
    thread.join()
    server.server_close()


def redirect(monkeypatch, name, mirrors, files=None):
    """Point a data set at other mirrors and, with ``files``, at their SHA-256."""
    source = getattr(module, name)
    sums = source.sha256
    if files is not None:
        sums = {key: hashlib.sha256(data).hexdigest() for key, data in files.items()}
    monkeypatch.setattr(
        module, name, dataclasses.replace(source, mirrors=tuple(mirrors), sha256=sums)
    )


@pytest.fixture
def offline(monkeypatch):
    """Mirrors where nothing listens."""
    for name in ("MNIST", "FASHION_MNIST"):
        redirect(monkeypatch, name, ["http://127.0.0.1:9/a/", "http://127.0.0.1:9/b/"])


@pytest.mark.parametrize("load", [mnist, fashion_mnist])
@pytest.mark.parametrize("compress", [False, True])
def test_reads_a_folder_without_the_network(tmp_path, fill_folder, offline, load, compress):
    fill_folder(tmp_path, compress=compress)
    train, test = load(tmp_path)
    assert (len(train), len(test)) == (40, 20)
    assert train.images.shape == (40, 28, 28) and train.images.dtype == np.uint8
    assert train.labels.dtype == np.int64 and test.labels.tolist() == [*range(10)] * 2
    assert (test.mean, test.std) == (train.mean, train.std)
    assert len(train.classes) == 10
    assert repr(train).startswith(f"Dataset({load.__name__} train: 40 images")


def test_a_folder_is_read_without_pooch(tmp_path, fill_folder):
    fill_folder(tmp_path)
    code = (
        "import sys; sys.modules['pooch'] = None\n"
        "import tinybn.data\n"
        "print(len(tinybn.data.mnist(sys.argv[1])[0]), 'requests' in sys.modules)"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert run.stdout.split() == ["40", "False"]


@pytest.mark.parametrize("name", ["MNIST", "FASHION_MNIST"])
def test_downloads_what_is_missing_once(monkeypatch, tmp_path, site, name):
    address, files, requests = site
    redirect(monkeypatch, name, [address], files)
    load = {"MNIST": mnist, "FASHION_MNIST": fashion_mnist}[name]
    root = tmp_path / "new" / "root"
    train, _ = load(str(root))
    assert len(train) == 40 and sorted(p.name for p in root.iterdir()) == sorted(files)
    assert len(requests) == 4
    (root / "t10k-labels-idx1-ubyte.gz").unlink()
    load(root)
    assert requests[4:] == ["/t10k-labels-idx1-ubyte.gz"]


def test_cache_is_checked_and_healed(monkeypatch, tmp_path, site):
    pooch = pytest.importorskip("pooch")
    monkeypatch.setattr(pooch, "os_cache", lambda project: tmp_path / "cache" / project)
    address, files, requests = site
    redirect(monkeypatch, "MNIST", [address], files)
    mnist()
    assert len(requests) == 4
    cached = tmp_path / "cache" / "tinybn" / "mnist" / "train-labels-idx1-ubyte.gz"
    cached.write_bytes(b"damaged")
    train, _ = mnist()
    assert len(train) == 40 and requests[4:] == ["/train-labels-idx1-ubyte.gz"]


def test_second_mirror_is_tried(monkeypatch, tmp_path, site):
    address, files, _ = site
    redirect(monkeypatch, "MNIST", ["http://127.0.0.1:9/", address + "absent/", address], files)
    assert len(mnist(tmp_path / "root")[0]) == 40


def test_wrong_sha256_is_refused(monkeypatch, tmp_path, site):
    redirect(monkeypatch, "MNIST", [site[0]])  # the real sums, other files
    with pytest.raises(DownloadError, match="ValueError"):
        mnist(tmp_path / "root")
    assert not list((tmp_path / "root").iterdir())


@pytest.mark.parametrize("load", [mnist, fashion_mnist])
def test_offline_is_one_sentence(tmp_path, offline, load):
    root = tmp_path / "absent"
    with pytest.raises(DownloadError) as caught:
        load(root)
    text = str(caught.value)
    assert load.__name__ in text and str(root) in text and "\n" not in text
    for name in module.MNIST.sha256:
        assert name in text
    printed = "".join(traceback.format_exception(caught.value))
    assert "urllib3" not in printed and printed.count("Traceback") == 1


@pytest.mark.parametrize("root", [None, "somewhere"])
def test_missing_pooch_is_one_sentence(monkeypatch, tmp_path, root):
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(MissingDependency, match="pip install pooch"):
        mnist(root and tmp_path / root)


def test_root_that_is_a_file(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ArgumentError, match="is a file"):
        mnist(tmp_path / "file")


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("train-images-idx3-ubyte", np.zeros((39, 28, 28), np.uint8), "39 images but 40 labels"),
        ("train-images-idx3-ubyte", np.zeros((40, 28, 27), np.uint8), "wanted uint8"),
        ("train-images-idx3-ubyte", np.zeros((40, 28, 28), np.int16), "wanted uint8"),
        ("train-images-idx3-ubyte", np.zeros((0, 28, 28), np.uint8), "N above 0"),
        ("t10k-images-idx3-ubyte", np.zeros((20, 784), np.uint8), "wanted uint8"),
        ("t10k-labels-idx1-ubyte", np.full(20, 10, np.uint8), "labels run from 10 to 10"),
        ("t10k-labels-idx1-ubyte", np.zeros((20, 1), np.uint8), r"wanted uint8 \(N,\)"),
        ("train-labels-idx1-ubyte", np.zeros(40, np.int32), r"wanted uint8 \(N,\)"),
    ],
)
def test_files_that_do_not_fit(tmp_path, fill_folder, idx_bytes, name, array, message):
    fill_folder(tmp_path)
    (tmp_path / name).write_bytes(idx_bytes(array))  # the plain file goes before name.gz
    with pytest.raises(DataError, match=message) as caught:
        mnist(tmp_path)
    assert str(tmp_path) in str(caught.value)


def test_damaged_file_is_named(tmp_path, fill_folder):
    fill_folder(tmp_path)
    path = tmp_path / "t10k-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(DataError, match="t10k-images-idx3-ubyte.gz"):
        mnist(tmp_path)


def test_known_sums():
    """A change of the SHA-256 table does not slip in unseen: all different, all 64 digits."""
    sums = [*module.MNIST.sha256.values(), *module.FASHION_MNIST.sha256.values()]
    assert len(set(sums)) == 8 and all(len(bytes.fromhex(value)) == 32 for value in sums)
