// The functions that the torch backend in tests/fake_device calls: kernels on the default stream,
// and ordinary device memory. In C, because the backend finds the functions by name in
// libmemtide_fake_cuda.so, which exports nothing else of the fake. Statuses are of type CUresult. A
// thread without a context uses that of the first GPU. Thread-safe.
#ifndef MEMTIDE_BASE_CUDA_FAKE_TORCH_BACKEND_H_
#define MEMTIDE_BASE_CUDA_FAKE_TORCH_BACKEND_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Memory that a kernel uses.
typedef struct memtide_fake_operand {
  void* address;  // Device memory.
  size_t size;    // In bytes.
  int written;    // Zero: only read.
} memtide_fake_operand;

typedef struct memtide_fake_kernel {
  // Runs in the stream's thread, with the operands' addresses replaced by those where it can access
  // their bytes. Not zero: it has failed, and so does the launch. Must not call the fake.
  int (*run)(void* context, const memtide_fake_operand* operands);
  // Called once, whether the kernel has run or not. Must not call the fake.
  void (*end)(void* context);
  void* context;
  // Its arithmetic, and the bytes of memory that it reads and writes: its time where a card is
  // played.
  double flop, bytes;
} memtide_fake_kernel;

// Queues a kernel. When its turn comes, an operand that is not mapped for its access is an illegal
// access: a sticky error. `operands` is copied.
int memtide_fake_launch(const memtide_fake_operand* operands, size_t count,
                        memtide_fake_kernel kernel);
// Waits for all work.
int memtide_fake_synchronize(void);
int memtide_fake_malloc(void** address, size_t size);
int memtide_fake_free(void* address);
int memtide_fake_memory(size_t* free, size_t* total);
// Names an error, as CUDA does.
const char* memtide_fake_error(int status);
// Where a card is played, the calling thread does this work of the host (card.h).
void memtide_fake_spend(const char* work);
// How often the function of this name was called.
uint64_t memtide_fake_calls(const char* name);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // MEMTIDE_BASE_CUDA_FAKE_TORCH_BACKEND_H_
