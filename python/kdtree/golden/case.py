"""A golden case: the arguments of one op call and what the reference says it must produce."""

from dataclasses import dataclass, field

import numpy as np

from kdtree import kdtr
from kdtree.golden.seeded import Seeded


@dataclass
class Case:
    """One bundle, written to <op>.<name>.kdtr. Tensor names are the fields of the op's params
    struct; scalar fields that no shape tells are tensors of rank 0."""

    op: str
    name: str
    seed: int
    inputs: dict  # name -> ndarray, kdtr.Tensor or Seeded
    outputs: dict  # name -> ndarray
    note: str = ""  # what the case is for
    extra: dict = field(default_factory=dict)  # more metadata

    @property
    def file_name(self):
        return f"{self.op}.{self.name}.kdtr"

    def metadata(self):
        meta = {
            "op": self.op,
            "case": self.name,
            "seed": str(self.seed),
            "note": self.note,
            "generator": "python -m kdtree.golden",
            "numpy": np.__version__,
            "outputs": ",".join(sorted(self.outputs)),
            **self.extra,
        }
        for name, value in self.inputs.items():
            if isinstance(value, Seeded):
                meta[f"seeded.{name}"] = value.describe()
        return {key: value for key, value in meta.items() if value}

    def tensors(self):
        """What the file stores: every tensor but the seeded ones."""
        both = {**self.inputs, **self.outputs}
        return {name: value for name, value in both.items() if not isinstance(value, Seeded)}

    def write(self, directory):
        path = directory / self.file_name
        kdtr.write(path, self.tensors(), self.metadata())
        return path


def values(tensor):
    """The fp32 values of an input, whatever form it has."""
    if isinstance(tensor, Seeded):
        tensor = tensor.make()
    return kdtr.to_f32(tensor)


def i32(*numbers):
    """[n] int32, or rank 0 for a single number."""
    return np.array(numbers[0] if len(numbers) == 1 else numbers, np.int32)
