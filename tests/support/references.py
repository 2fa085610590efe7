"""References as stores, written by kerchunk and VirtualiZarr or by hand; and what xarray reads through them."""

from __future__ import annotations

import json
import warnings

import numpy as np

from support.pipelines import build, same, to_numpy

SHAPE = (24, 8, 16)
DIMS = ("time", "lat", "lon")
WRITERS = ["kerchunk.json", "kerchunk.parq", "virtualizarr.json", "virtualizarr.parq", "virtualizarr.icechunk"]


def write_hdf(file, values):
    """NetCDF 4 in each way that HDF5 stores arrays."""
    import h5netcdf

    with h5netcdf.File(file, "w") as f:
        f.dimensions = dict(zip(DIMS, SHAPE, strict=True))

        def write(name, data, dims=DIMS, **how):
            variable = f.create_variable(name, dims, data.dtype, **how)
            variable[...] = data
            return variable

        write("time", np.arange(24, dtype="int64"), ("time",))
        write("lat", np.linspace(-90, 90, 8), ("lat",))
        write("contiguous", values)
        write("chunked", values, chunks=(2, 8, 16))
        write("gzip", values, chunks=(2, 4, 16), compression="gzip", compression_opts=4, shuffle=True)
        write("fletcher", values, chunks=(3, 8, 16), fletcher32=True)
        write("all", values, chunks=(3, 8, 16), compression="gzip", shuffle=True, fletcher32=True)
        write("big", values.astype(">f4"), chunks=(1, 8, 16))
        packed = write("packed", (values * 100).astype("int16"), chunks=(5, 3, 7), compression="gzip", fillvalue=-32768)
        packed[3, :, 2] = -32768
        packed.attrs.update({"scale_factor": 0.01, "add_offset": 1.5})
        write("scalar", np.float64(3.5), ())


def write_references(folder, file):
    """Writes references with each writer. Parquet files have few rows, so that an array has several files."""
    from kerchunk.df import refs_to_dataframe
    from kerchunk.hdf import SingleHdf5ToZarr

    references = SingleHdf5ToZarr(str(file), inline_threshold=120).translate()
    (folder / "kerchunk.json").write_text(json.dumps(references))
    with warnings.catch_warnings():
        # pandas warns that fastparquet is outdated; kerchunk writes with it.
        warnings.simplefilter("ignore")
        refs_to_dataframe(references, str(folder / "kerchunk.parq"), record_size=7)
        virtualize(folder, file)


def virtualize(folder, file):
    import icechunk
    from obspec_utils.registry import ObjectStoreRegistry
    from obstore.store import LocalStore
    from virtualizarr import open_virtual_dataset
    from virtualizarr.parsers import HDFParser

    registry = ObjectStoreRegistry({"file://": LocalStore()})
    dataset = open_virtual_dataset(f"file://{file}", registry=registry, parser=HDFParser(), loadable_variables=["time"])
    # For arrays without dimensions VirtualiZarr writes a key that nobody reads.
    dataset = dataset.drop_vars("scalar")
    dataset.vz.to_kerchunk(str(folder / "virtualizarr.json"), format="json")
    dataset.vz.to_kerchunk(
        str(folder / "virtualizarr.parq"), format="parquet", record_size=10, categorical_threshold=2
    )
    container = f"file://{file.parent}/"
    config = icechunk.RepositoryConfig.default()
    config.set_virtual_chunk_container(
        icechunk.VirtualChunkContainer(container, icechunk.local_filesystem_store(str(file.parent)))
    )
    storage = icechunk.local_filesystem_storage(str(folder / "virtualizarr.icechunk"))
    repository = icechunk.Repository.create(
        storage, config=config, authorize_virtual_chunk_access=icechunk.containers_credentials({container: None})
    )
    session = repository.writable_session("main")
    dataset.vz.to_icechunk(session.store)
    session.commit("virtual")


def by_xarray(store, mask_and_scale=False):
    """Returns the values of all variables as xarray reads them."""
    import xarray

    if store.suffix == ".icechunk":
        import icechunk

        container = f"file://{store.parent}/data/"
        repository = icechunk.Repository.open(
            icechunk.local_filesystem_storage(str(store)),
            authorize_virtual_chunk_access=icechunk.containers_credentials({container: None}),
        )
        opened = {"filename_or_obj": repository.readonly_session("main").store}
    else:
        opened = {
            "filename_or_obj": "reference://", "storage_options": {"fo": str(store), "remote_protocol": "file"},
        }
    dataset = xarray.open_dataset(
        **opened, engine="zarr", consolidated=False, decode_times=False, mask_and_scale=mask_and_scale
    )
    return {name: native(variable.values) for name, variable in dataset.variables.items()}


def native(values):
    return np.asarray(values, values.dtype.newbyteorder("="))


def read(device, path, name, count, **args):
    """Returns a first batch of ``count`` samples, one for each element of the first dimension."""
    args = {"mask_and_scale": False, "arrays": name if isinstance(name, list) else [name]} | args
    pipe = build(device, count, path=path, dims=[0], **args)
    return [to_numpy(out) for out in pipe.run()]


def check_all(device, path, expected, **args):
    for name, want in expected.items():
        if want.ndim:
            same(read(device, path, name, len(want), **args)[0], want, f"{path}: {name}")


def rewritten(refs, old, new):
    """Returns references with ``new`` instead of ``old`` in their URLs."""
    out = dict(refs)
    for key, value in refs["refs"].items():
        if isinstance(value, list):
            out["refs"][key] = [value[0].replace(str(old), new), *value[1:]]
    return out


def document(folder, refs, name="refs.json", **more):
    file = folder / name
    file.write_text(json.dumps({"version": 1, "refs": refs} | more))
    return file


def zarray(shape, chunks, dtype="<f4", **more):
    return json.dumps({
        "zarr_format": 2, "shape": shape, "chunks": chunks, "dtype": dtype, "compressor": None, "fill_value": None,
        "filters": None, "order": "C",
    } | more)


def gets(server, path):
    """Returns the ranges of a file that were asked for. The log begins anew."""
    log = server.take_log()
    assert {method for method, _, _ in log} == {"GET"}
    return [range_ for _, found, range_ in log if found == path]
