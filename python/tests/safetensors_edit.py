"""Takes a safetensors file apart and puts it together again, to make broken checkpoints."""

import json
import pathlib


class Safetensors:
    """entries: {name: [dtype, shape, bytes]}, free to be changed; nothing is checked."""

    def __init__(self, path):
        self.path = pathlib.Path(path)
        data = self.path.read_bytes()
        header_bytes = int.from_bytes(data[:8], "little")
        header, payload = json.loads(data[8 : 8 + header_bytes]), data[8 + header_bytes :]
        self.entries = {
            name: [entry["dtype"], entry["shape"], payload[slice(*entry["data_offsets"])]]
            for name, entry in header.items()
            if name != "__metadata__"
        }

    def save(self, path=None, names=None):
        """Writes the entries, or only those of `names`, over the file or to `path`."""
        header, payload = {}, []
        offset = 0
        for name in names or self.entries:
            dtype, shape, data = self.entries[name]
            end = offset + len(data)
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, end]}
            payload.append(data)
            offset = end
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        data = len(text).to_bytes(8, "little") + text + b"".join(payload)
        (self.path if path is None else pathlib.Path(path)).write_bytes(data)

    def find(self, part):
        """The only name that contains `part`, or the first of several."""
        return next(name for name in self.entries if part in name)

    def split(self, n_shards):
        """Replaces the file by shards and their index; returns the shards' paths."""
        names = list(self.entries)
        weight_map, paths = {}, []
        for i in range(n_shards):
            name = f"model-{i + 1:05}-of-{n_shards:05}.safetensors"
            mine = names[i * len(names) // n_shards : (i + 1) * len(names) // n_shards]
            paths.append(self.path.with_name(name))
            self.save(paths[-1], mine)
            weight_map |= dict.fromkeys(mine, name)
        index = {"metadata": {"total_size": 0}, "weight_map": weight_map}
        self.path.with_name("model.safetensors.index.json").write_text(json.dumps(index))
        self.path.unlink()
        return paths
