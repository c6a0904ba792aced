#include "bench/nt_loop.h"

#include <immintrin.h>

#include "base/check.h"

namespace memtide {
namespace {

constexpr size_t kStep = 256;

__attribute__((target("avx512f"))) void Avx512Loop(char* to, const char* from, size_t size) {
  for (size_t i = 0; i < size; i += kStep) {
    const __m512i a = _mm512_load_si512(from + i);
    const __m512i b = _mm512_load_si512(from + i + 64);
    const __m512i c = _mm512_load_si512(from + i + 128);
    const __m512i d = _mm512_load_si512(from + i + 192);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + i), a);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + i + 64), b);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + i + 128), c);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + i + 192), d);
  }
  _mm_sfence();
}

__attribute__((target("avx2"))) void Avx2Loop(char* to, const char* from, size_t size) {
  for (size_t i = 0; i < size; i += kStep / 2) {
    const auto* const source = reinterpret_cast<const __m256i*>(from + i);
    auto* const target = reinterpret_cast<__m256i*>(to + i);
    const __m256i a = _mm256_load_si256(source);
    const __m256i b = _mm256_load_si256(source + 1);
    const __m256i c = _mm256_load_si256(source + 2);
    const __m256i d = _mm256_load_si256(source + 3);
    _mm256_stream_si256(target, a);
    _mm256_stream_si256(target + 1, b);
    _mm256_stream_si256(target + 2, c);
    _mm256_stream_si256(target + 3, d);
  }
  _mm_sfence();
}

void Sse2Loop(char* to, const char* from, size_t size) {
  for (size_t i = 0; i < size; i += 16) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(to + i),
                     _mm_load_si128(reinterpret_cast<const __m128i*>(from + i)));
  }
  _mm_sfence();
}

struct Loop {
  const char* name;
  void (*copy)(char* to, const char* from, size_t size);
};

const Loop& BestLoop() {
  static const Loop best = __builtin_cpu_supports("avx512f") ? Loop{"AVX-512", Avx512Loop}
                           : __builtin_cpu_supports("avx2")  ? Loop{"AVX2", Avx2Loop}
                                                             : Loop{"SSE2", Sse2Loop};
  return best;
}

}  // namespace

void NtLoop(char* to, const char* from, Bytes size) {
  MEMTIDE_CHECK(size.IsMultipleOf(Bytes(kStep))) << size;
  BestLoop().copy(to, from, size.count());
}

const char* NtLoopName() { return BestLoop().name; }

}  // namespace memtide
