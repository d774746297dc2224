#!/usr/bin/env python3
"""Compares what two executors recorded (TRIREME_RECORD_BITS): every tensor of every test, by its bits.

  compare_bits.py FIRST SECOND

Exponentials, logarithms and tanh are a few instructions of CUDA's library in PTX and the host's own function in the host
execution, so tensors behind one of them differ in their last bits: tests of these ops are counted, not compared. All other
tests must be equal, and there must be some.
"""
import sys

WITH_EXPONENTIALS = ("Attention", "CrossEntropy", "Gelu", "Glu", "GemmEpilogue", "GemmRows", "Router", "ExpertRows")


def read(path):
    with open(path) as lines:
        return {words[0]: set(words[1:]) for words in (line.split() for line in lines) if words}


def main():
    first, second = read(sys.argv[1]), read(sys.argv[2])
    both = sorted(first.keys() & second.keys())
    equal = [test for test in both if first[test] == second[test]]
    exact = [test for test in both if not test.split("/", 1)[-1].startswith(WITH_EXPONENTIALS)]
    differ = [test for test in exact if first[test] != second[test]]
    tensors = sum(len(first[test] & second[test]) for test in both)
    print(f"{len(equal)} of {len(both)} tests have equal bits, {tensors} tensors; {len(exact)} take no exponential, of these differ: "
          f"{len(differ)}")
    for suite in sorted({test.split("/", 1)[-1].split(".")[0] for test in both}):
        of_suite = [test for test in both if test.split("/", 1)[-1].startswith(suite + ".")]
        print(f"  {suite}: {sum(test in equal for test in of_suite)} of {len(of_suite)}")
    for test in differ:
        print(f"  {test}: {len(first[test] & second[test])} of {len(first[test])} tensors are equal")
    return 1 if differ or not exact else 0


sys.exit(main())
