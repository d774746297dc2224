"""The smallest writer of Megatron's .bin/.idx pair, for fixtures."""

import struct

import numpy

CODES = {numpy.dtype("int32"): 4, numpy.dtype("uint16"): 8}


def write_token_file(prefix, documents, dtype=numpy.uint16):
    """`documents`: lists of token ids; each becomes one sequence and one document."""
    dtype = numpy.dtype(dtype)
    lengths = numpy.array([len(document) for document in documents], numpy.int32)
    pointers = numpy.zeros(len(documents), numpy.int64)
    pointers[1:] = numpy.cumsum(lengths[:-1], dtype=numpy.int64) * dtype.itemsize
    boundaries = numpy.arange(len(documents) + 1, dtype=numpy.int64)
    flat = numpy.concatenate([numpy.array(document, dtype) for document in documents])
    prefix.with_suffix(".bin").write_bytes(flat.tobytes())
    header = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, CODES[dtype], len(lengths), len(boundaries))
    arrays = lengths.tobytes() + pointers.tobytes() + boundaries.tobytes()
    prefix.with_suffix(".idx").write_bytes(header + arrays)
