// Writes one array as zarrita (v3) or zarr.js (v2) does. The only argument is JSON: {writer, folder, path, data, options}, where
// `data` names a file with the elements in C order, little-endian, and `options` are those of the writer's `create`.

import { mkdirSync, existsSync, readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";

const TYPES = {
  bool: Uint8Array, int8: Int8Array, uint8: Uint8Array, int16: Int16Array, uint16: Uint16Array, int32: Int32Array,
  uint32: Uint32Array, int64: BigInt64Array, uint64: BigUint64Array, float32: Float32Array, float64: Float64Array,
};

const { writer, folder, path, data, dtype, options } = JSON.parse(process.argv.at(-1));
const bytes = readFileSync(data);
const elements = new TYPES[dtype](bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.byteLength));

if (writer === "zarrita") {
  const zarr = await import("zarrita");
  const { default: FileSystemStore } = await import("@zarrita/storage/fs");
  // zarrita reads these with what browsers bring, and leaves writing to those who register an encoder.
  for (const name of ["gzip", "zlib"]) {
    const codec = () => import(`numcodecs/${name}`).then((module) => module.default);
    zarr.registry.set(name, codec).set(`numcodecs.${name}`, codec);
  }
  const root = zarr.root(new FileSystemStore(folder));
  await zarr.create(root);
  const array = await zarr.create(root.resolve(path), { ...options, dtype });
  const stride = options.shape.map((_, i) => options.shape.slice(i + 1).reduce((a, b) => a * b, 1));
  const chunk = dtype === "bool" ? new zarr.BoolArray(elements.buffer) : elements;
  await zarr.set(array, null, { data: chunk, shape: options.shape, stride });
} else {
  const { create, NestedArray } = await import("zarr");
  // zarr.js has no store for folders: this is one.
  const at = (key) => join(folder, key);
  const store = {
    keys: () => readdirSync(folder, { recursive: true }).map(String),
    getItem: (key) => {
      if (existsSync(at(key))) return readFileSync(at(key));
      throw Object.assign(new Error(key), { __zarr__: "KeyError" });
    },
    containsItem: (key) => existsSync(at(key)),
    deleteItem: (key) => (rmSync(at(key)), true),
    setItem: (key, value) => {
      mkdirSync(dirname(at(key)), { recursive: true });
      writeFileSync(at(key), typeof value === "string" ? value : Buffer.from(value));
      return true;
    },
  };
  const array = await create({ ...options, store, path });
  await array.set(null, new NestedArray(elements, options.shape, options.dtype));
}
