"""Runs the source of a fused kernel on the CPU: a thread for each of a warp's 32 lanes."""

import ctypes
import shutil
import subprocess
from pathlib import Path

import numpy as np

from omlx_cache.codecs import turbo_source

COMPILER = shutil.which("g++") or shutil.which("clang++")
_HEAD = """
#include <barrier>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>
#define ADD(a, b) ((a) + (b))
#define SUB(a, b) ((a) - (b))
#define MUL(a, b) ((a) * (b))
#define DIV(a, b) ((a) / (b))
#define ROOT(a) std::sqrt(a)
#define ACROSS(v, m) ask(v, self, self ^ (m))
#define NEXT(v) ask(v, self, self < 31 ? self + 1 : self)
static std::barrier<> gate(32);
static uint32_t slots[32];
template <typename V> V ask(V v, int self, int from) {
  std::memcpy(&slots[self], &v, 4);
  gate.arrive_and_wait();
  V other;
  std::memcpy(&other, &slots[from], 4);
  gate.arrive_and_wait();
  return other;
}
template <typename T> void load8(const T* from, float* v) {
  for (int j = 0; j < 8; ++j) v[j] = from[j];
}
template <typename T> void store8(T* to, const float* v) {
  for (int j = 0; j < 8; ++j) to[j] = v[j];
}
template <typename F> void warps(int rows, int lanes, F work) {
  std::vector<std::thread> threads;
  const size_t count = ((size_t)rows * lanes + 31) / 32;
  for (int self = 0; self < 32; ++self)
    threads.emplace_back([=] { for (size_t w = 0; w < count; ++w) work(w * 32 + self, self); });
  for (auto& thread : threads) thread.join();
}
using T = float;
using H = float;
"""
_ENCODE = """
static void encode_lane(size_t thread_, int self, const int* x_shape, const float* x,
    const float* signs, const float* edges, const float* levels, float* norms, uint32_t* words) {
BODY
}
extern "C" void encode(int rows, const float* x, const float* signs, const float* edges,
    const float* levels, float* norms, uint32_t* words) {
  warps(rows, LANES, [&](size_t t, int s) {
    encode_lane(t, s, &rows, x, signs, edges, levels, norms, words);
  });
}
"""
_DECODE = """
static void decode_lane(size_t thread_, int self, const int* words_shape, const uint32_t* words,
    const float* norms, const float* signs, const float* levels, float* out) {
BODY
}
extern "C" void decode(int rows, const uint32_t* words, const float* norms, const float* signs,
    const float* levels, float* out) {
  warps(rows, LANES, [&](size_t t, int s) {
    decode_lane(t, s, &rows, words, norms, signs, levels, out);
  });
}
"""

Floats = np.ndarray[tuple[int, ...], np.dtype[np.float32]]
Words = np.ndarray[tuple[int, ...], np.dtype[np.uint32]]


class Lanes:
    """The kernels of one form, compiled; inputs and outputs are float32."""

    def __init__(
        self, directory: Path, dim: int, bits: int, *, corrected: bool, order: turbo_source.Sum
    ) -> None:
        self._words = dim * bits // 32
        self._dim = dim
        encode = turbo_source.encode_source(dim, bits, corrected=corrected, order=order)
        decode = turbo_source.decode_source(dim, bits)
        lanes = str(dim // turbo_source.LANE)
        text = _HEAD + (
            _ENCODE.replace("LANES", lanes).replace("BODY", encode)
            + _DECODE.replace("LANES", lanes).replace("BODY", decode)
        )
        (directory / "kernel.cpp").write_text(text)
        library = directory / "kernel.so"
        flags = ["-std=c++20", "-O1", "-ffp-contract=off", "-w", "-shared", "-fPIC", "-pthread"]
        subprocess.run(
            [str(COMPILER), *flags, "-o", str(library), str(directory / "kernel.cpp")], check=True
        )
        self._library = ctypes.CDLL(str(library))

    def encode(
        self, x: Floats, signs: Floats, edges: Floats, levels: Floats
    ) -> tuple[Floats, Words]:
        norms = np.empty(len(x), np.float32)
        words = np.empty((len(x), self._words), np.uint32)
        self._library.encode(len(x), *map(_pointer, (x, signs, edges, levels, norms, words)))
        return norms, words

    def decode(self, words: Words, norms: Floats, signs: Floats, levels: Floats) -> Floats:
        out = np.empty((len(words), self._dim), np.float32)
        self._library.decode(len(words), *map(_pointer, (words, norms, signs, levels, out)))
        return out


def _pointer(array: Floats | Words) -> ctypes.c_void_p:
    return array.ctypes.data_as(ctypes.c_void_p)
