#include "daemon/device/streaming_copy.h"

#include <cstdint>
#include <cstring>

#ifdef __x86_64__
#include <immintrin.h>
#endif

namespace memtide {
namespace {

#ifdef __x86_64__

// No prefetches: the CPU sees the stream by itself, and is a quarter faster without them (15.3
// against 19.9 GB/s for AVX2 on the EPYC that bench/README.md speaks of).

__attribute__((target("avx512f"))) void CopyAvx512(char* to, const char* from, size_t size) {
  for (size_t i = 0; i < size; i += kStreamingBlock) {
    const __m512i a = _mm512_loadu_si512(from + i);
    const __m512i b = _mm512_loadu_si512(from + i + 64);
    const __m512i c = _mm512_loadu_si512(from + i + 128);
    const __m512i d = _mm512_loadu_si512(from + i + 192);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + i), a);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + i + 64), b);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + i + 128), c);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + i + 192), d);
  }
  // Non-temporal stores are weakly ordered: without the fence, a thread that learns of the end of
  // the copy could read old bytes.
  _mm_sfence();
}

__attribute__((target("avx512f"))) void ZeroAvx512(char* to, size_t size) {
  const __m512i zero = _mm512_setzero_si512();
  for (size_t i = 0; i < size; i += 64) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + i), zero);
  }
  _mm_sfence();
}

__attribute__((target("avx2"))) void CopyAvx2(char* to, const char* from, size_t size) {
  for (size_t i = 0; i < size; i += 128) {
    const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i));
    const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i + 32));
    const __m256i c = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i + 64));
    const __m256i d = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i + 96));
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + i), a);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + i + 32), b);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + i + 64), c);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + i + 96), d);
  }
  _mm_sfence();
}

__attribute__((target("avx2"))) void ZeroAvx2(char* to, size_t size) {
  const __m256i zero = _mm256_setzero_si256();
  for (size_t i = 0; i < size; i += 32) {
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + i), zero);
  }
  _mm_sfence();
}

void CopySse2(char* to, const char* from, size_t size) {
  for (size_t i = 0; i < size; i += 64) {
    const __m128i a = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i));
    const __m128i b = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i + 16));
    const __m128i c = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i + 32));
    const __m128i d = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i + 48));
    _mm_stream_si128(reinterpret_cast<__m128i*>(to + i), a);
    _mm_stream_si128(reinterpret_cast<__m128i*>(to + i + 16), b);
    _mm_stream_si128(reinterpret_cast<__m128i*>(to + i + 32), c);
    _mm_stream_si128(reinterpret_cast<__m128i*>(to + i + 48), d);
  }
  _mm_sfence();
}

void ZeroSse2(char* to, size_t size) {
  const __m128i zero = _mm_setzero_si128();
  for (size_t i = 0; i < size; i += 16) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(to + i), zero);
  }
  _mm_sfence();
}

std::vector<StreamingKernel> FindKernels() {
  __builtin_cpu_init();
  return {
      {"avx512", __builtin_cpu_supports("avx512f") != 0, CopyAvx512, ZeroAvx512},
      {"avx2", __builtin_cpu_supports("avx2") != 0, CopyAvx2, ZeroAvx2},
      {"sse2", true, CopySse2, ZeroSse2},
  };
}

#else

std::vector<StreamingKernel> FindKernels() { return {}; }

#endif

const StreamingKernel* Widest() {
  for (const StreamingKernel& kernel : StreamingKernels()) {
    if (kernel.supported) return &kernel;
  }
  return nullptr;
}

// The part of [to, to + size) that a kernel may stream to: `head` bytes come before it.
struct Body {
  size_t head, size;
};
// Non-temporal stores need an aligned destination; loads may have any alignment.
Body BodyOf(const char* to, size_t size) {
  const size_t head = (64 - reinterpret_cast<uintptr_t>(to) % 64) % 64;
  return {head, (size - head) / kStreamingBlock * kStreamingBlock};
}

}  // namespace

const std::vector<StreamingKernel>& StreamingKernels() {
  // tidy(raw-new): never destroyed, as threads may copy while the process ends.
  static const std::vector<StreamingKernel>& kernels = *new std::vector(FindKernels());
  return kernels;
}

void StreamCopy(char* to, const char* from, Bytes size) {
  static const StreamingKernel* const kernel = Widest();
  if (size < kStreamingThreshold || kernel == nullptr) {
    memcpy(to, from, size.count());
    return;
  }
  const Body body = BodyOf(to, size.count());
  const size_t tail = body.head + body.size;
  memcpy(to, from, body.head);
  kernel->copy(to + body.head, from + body.head, body.size);
  memcpy(to + tail, from + tail, size.count() - tail);
}

void StreamZero(char* to, Bytes size) {
  static const StreamingKernel* const kernel = Widest();
  if (size < kStreamingThreshold || kernel == nullptr) {
    memset(to, 0, size.count());
    return;
  }
  const Body body = BodyOf(to, size.count());
  const size_t tail = body.head + body.size;
  memset(to, 0, body.head);
  kernel->zero(to + body.head, body.size);
  memset(to + tail, 0, size.count() - tail);
}

}  // namespace memtide
