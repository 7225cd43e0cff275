"""The source of TurboQuant's fused kernels, one text for CUDA and Metal.

A lane holds eight neighbouring coordinates, `dim / 8` lanes a vector. All arithmetic is in float32
and rounded after each operation, in the order of MLX's own. The transform's strides ascend, and a
norm is summed in one of the orders of `SUMS`. So the bits are those of the plain form.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

LANE: Final = 8


class Sum(NamedTuple):
    """How a reduction adds up a row: runs of `reads` in turn, then pairs of runs, from far to near
    (`descending`) or the other way."""

    reads: int
    descending: bool


SUMS: Final = (Sum(8, True), Sum(4, True), Sum(4, False), Sum(8, False))
"""Orders that MLX's releases and back ends may have; which one it is, a check finds."""

CUDA_HEADER: Final = """
#define ADD(a, b) __fadd_rn(a, b)
#define SUB(a, b) __fsub_rn(a, b)
#define MUL(a, b) __fmul_rn(a, b)
#define DIV(a, b) __fdiv_rn(a, b)
#define ROOT(a) __fsqrt_rn(a)
#define ACROSS(v, m) __shfl_xor_sync(0xffffffffu, v, m)
#define NEXT(v) __shfl_down_sync(0xffffffffu, v, 1)

template <typename T>
__device__ __forceinline__ void load8(const T* from, float* v) {
  if constexpr (sizeof(T) == 2) {
    if ((reinterpret_cast<size_t>(from) & 15) == 0) {
      alignas(16) T raw[8];
      *reinterpret_cast<uint4*>(raw) = *reinterpret_cast<const uint4*>(from);
      for (int j = 0; j < 8; ++j) v[j] = static_cast<float>(raw[j]);
      return;
    }
  }
  for (int j = 0; j < 8; ++j) v[j] = static_cast<float>(from[j]);
}

template <typename T>
__device__ __forceinline__ void store8(T* to, const float* v) {
  if constexpr (sizeof(T) == 2) {
    if ((reinterpret_cast<size_t>(to) & 15) == 0) {
      alignas(16) T raw[8];
      for (int j = 0; j < 8; ++j) raw[j] = static_cast<T>(v[j]);
      *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(raw);
      return;
    }
  }
  for (int j = 0; j < 8; ++j) to[j] = static_cast<T>(v[j]);
}
"""
CUDA_THREAD: Final = "const size_t thread_ = (size_t)blockIdx.x * blockDim.x + threadIdx.x;\n"

METAL_HEADER: Final = """
#include <metal_stdlib>
using namespace metal;
#pragma clang fp contract(off)
#define ADD(a, b) ((a) + (b))
#define SUB(a, b) ((a) - (b))
#define MUL(a, b) ((a) * (b))
#define DIV(a, b) precise::divide(a, b)
#define ROOT(a) precise::sqrt(a)
#define ACROSS(v, m) simd_shuffle_xor(v, ushort(m))
#define NEXT(v) simd_shuffle_down(v, ushort(1))

template <typename T>
void load8(const device T* from, thread float* v) {
  for (int j = 0; j < 8; ++j) v[j] = static_cast<float>(from[j]);
}

template <typename T>
void store8(device T* to, const thread float* v) {
  for (int j = 0; j < 8; ++j) to[j] = static_cast<T>(v[j]);
}
"""
METAL_THREAD: Final = "const size_t thread_ = thread_position_in_grid.x;\n"

_PLACE = """
const size_t rows = {rows}_shape[0];
const bool live = thread_ / LANES < rows;
const size_t row = live ? thread_ / LANES : rows - 1;
const int lane = thread_ % LANES;
float v[8];
"""

_TRANSFORM = """
for (int h = 1; h < 8; h *= 2) {
  for (int j = 0; j < 8; ++j) {
    if (!(j & h)) {
      const float a = v[j];
      const float b = v[j + h];
      v[j] = ADD(a, b);
      v[j + h] = SUB(a, b);
    }
  }
}
for (int m = 1; m < LANES; m *= 2) {
  for (int j = 0; j < 8; ++j) {
    const float other = ACROSS(v[j], m);
    v[j] = (lane & m) ? SUB(other, v[j]) : ADD(v[j], other);
  }
}
"""

_LOAD = """
load8(x + row * DIM + lane * 8, v);
float norm;
{
@NORM@
norm = ROOT(total);
}
const float divisor = norm > 1e-6f ? norm : 1e-6f;
for (int j = 0; j < 8; ++j) v[j] = MUL(DIV(v[j], divisor), signs[lane * 8 + j]);
"""

_ROUND = """
uint32_t code = 0;
float edge[LEVELS - 1];
for (int i = 0; i < LEVELS - 1; ++i) edge[i] = edges[i];
for (int j = 0; j < 8; ++j) {
  const float c = MUL(v[j], SCALE);
  uint32_t index = 0;
  for (int i = 0; i < LEVELS - 1; ++i) index += c > edge[i] ? 1u : 0u;
  code |= index << (j * BITS);
  v[j] = levels[index];
}
"""

_CORRECT = """
{
@NORM@
norm = DIV(norm, ROOT(total));
}
"""

_KEEP = {
    4: "if (live) words[row * WORDS + lane] = code;\n",
    3: """
const uint32_t next = NEXT(code);
const int third = lane & 3;
if (live && third < 3) {
  words[row * WORDS + lane / 4 * 3 + third] = (code >> (8 * third)) | (next << (24 - 8 * third));
}
""",
    2: """
const uint32_t next = NEXT(code);
if (live && !(lane & 1)) words[row * WORDS + lane / 2] = code | (next << 16);
""",
}

_FETCH = {
    4: "const uint32_t code = words[row * WORDS + lane];\n",
    3: """
const int first = lane / 4 * 3 + (lane & 3) * 3 / 4;
const int shift = (lane & 3) * 24 % 32;
uint32_t code = words[row * WORDS + first] >> shift;
if (shift > 8) code |= words[row * WORDS + first + 1] << (32 - shift);
""",
    2: "const uint32_t code = words[row * WORDS + lane / 2] >> (16 * (lane & 1));\n",
}

BITS: Final = tuple(_KEEP)
DIMS: Final = (64, 128, 256)


def encode_source(dim: int, bits: int, *, corrected: bool, order: Sum) -> str:
    """Return the body: inputs x (rows, dim) of T, signs, edges, levels; outputs norms (rows) of H
    and words (rows, dim * bits / 32)."""
    norm = _norm(dim // LANE, order)
    correct = _CORRECT.replace("@NORM@", norm) if corrected else ""
    return _unrolled(
        _constants(dim, bits)
        + _PLACE.replace("{rows}", "x")
        + _LOAD.replace("@NORM@", norm)
        + _TRANSFORM
        + _ROUND
        + correct
        + "if (live && lane == 0) norms[row] = static_cast<H>(norm);\n"
        + _KEEP[bits]
    )


def decode_source(dim: int, bits: int) -> str:
    """Return the body: inputs words (rows, dim * bits / 32), norms (rows), signs, levels; output
    out (rows, dim) of T."""
    return _unrolled(
        _constants(dim, bits)
        + _PLACE.replace("{rows}", "words")
        + _FETCH[bits]
        + "for (int j = 0; j < 8; ++j) v[j] = levels[(code >> (j * BITS)) & (LEVELS - 1)];\n"
        + _TRANSFORM
        + "const float norm = static_cast<float>(norms[row]);\n"
        + "for (int j = 0; j < 8; ++j) {\n"
        + "  v[j] = MUL(MUL(MUL(v[j], SCALE), signs[lane * 8 + j]), norm);\n}\n"
        + "if (live) store8(out + row * DIM + lane * 8, v);\n"
    )


def _unrolled(body: str) -> str:
    """Return the code with its loops unrolled, which keeps `v` in registers."""
    return body.replace("for (int", "\n#pragma unroll\nfor (int")


def _constants(dim: int, bits: int) -> str:
    return (
        f"constexpr int DIM = {dim};\nconstexpr int LANES = {dim // LANE};\n"
        f"constexpr int BITS = {bits};\nconstexpr int LEVELS = {1 << bits};\n"
        f"constexpr int WORDS = {dim * bits // 32};\n"
        f"constexpr float SCALE = {float(np.float32(dim**-0.5)):.9g}f;\n"
    )


def _norm(lanes: int, order: Sum) -> str:
    squares = [f"MUL(v[{j}], v[{j}])" for j in range(LANE)]
    if order.reads == LANE:
        return _in_turn("total", squares) + _pairs("total", lanes, order.descending)
    # A lane has two runs. A warp of MLX's sums 32 of them, and one of ours has as many in 16 lanes.
    inside = min(lanes, 16)
    both = _in_turn("low", squares[:4]) + _in_turn("high", squares[4:])
    join = "float total = ADD(low, high);\n"
    last = "total = ADD(total, ACROSS(total, 16));\n" if lanes > inside else ""
    if order.descending:
        far = _pairs("low", inside, True) + _pairs("high", inside, True)
        return both + far + join + last
    return both + join + _pairs("total", inside, False) + last


def _in_turn(name: str, terms: list[str]) -> str:
    lines = [f"float {name} = {terms[0]};\n"]
    return "".join(lines + [f"{name} = ADD({name}, {term});\n" for term in terms[1:]])


def _pairs(name: str, lanes: int, descending: bool) -> str:
    steps = [1 << step for step in range(lanes.bit_length() - 1)]
    ordered = reversed(steps) if descending else steps
    return "".join(f"{name} = ADD({name}, ACROSS({name}, {m}));\n" for m in ordered)
