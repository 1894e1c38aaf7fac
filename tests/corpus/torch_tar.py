"""Files in the form that torch had before 0.1.10: a tar archive. Made from a plain description, without torch.

storages: (number, type, location, item bytes, content); views: (number, root, offset, count); tensors: (number, storage, type,
shape, strides, offset). The object is pickled with `persistent_id` giving the number of a tensor or storage as text.
"""

import io
import pickle
import struct
import tarfile


class Named:
    """Pickles as the class of that name, which need not exist."""

    def __init__(self, module, name):
        self.module, self.name = module, name


class Pickler(pickle._Pickler):
    def __init__(self, file, numbers=None, protocol=2):
        super().__init__(file, protocol)
        self.numbers = numbers or {}

    def persistent_id(self, thing):
        number = self.numbers.get(id(thing))
        return None if number is None else str(number)

    def save(self, thing, save_persistent_id=True):
        if isinstance(thing, Named):
            self.write(b"c" + thing.module.encode() + b"\n" + thing.name.encode() + b"\n")
        else:
            super().save(thing, save_persistent_id)


def pickled(thing, numbers=None):
    out = io.BytesIO()
    Pickler(out, numbers).dump(thing)
    return out.getvalue()


def parts(object_pickle, storages, views, tensors, little_endian=True):
    """The archive's files, name by name."""
    order = "<" if little_endian else ">"
    of_storages = pickled(len(storages))
    for number, kind, location, item_bytes, content in storages:
        of_storages += pickled((number, location, Named("torch", kind))) + struct.pack(order + "q", len(content) // item_bytes) + content
    of_tensors = pickled(len(tensors))
    for number, storage, kind, shape, strides, offset in tensors:
        of_tensors += pickled((number, storage, Named("torch", kind))) + struct.pack(order + "ii", len(shape), 0)
        of_tensors += struct.pack(f"{order}{2 * len(shape) + 1}q", *shape, *strides, offset)
    facts = {"protocol_version": 1000, "little_endian": little_endian, "type_sizes": {"short": 2, "int": 4, "long": 4}}
    return {"sys_info": pickled(facts), "pickle": object_pickle, "tensors": of_tensors, "storages": of_storages + pickled(list(views))}


def archive(files, **options):
    """A tar archive of (name, content) pairs, or of a dictionary of them."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:", format=options.get("format", tarfile.PAX_FORMAT)) as tar:
        for name, content in files.items() if isinstance(files, dict) else files:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return out.getvalue()
