// A fake CUDA for tests without a GPU. Linked instead of base/cuda/libcuda.cc, it answers with a
// fake driver's functions. Most of them have their own names, so tests call them as they are.
//
// Device memory is files in a directory on tmpfs. Processes that name the same directory share its
// devices as they would share a GPU: memory is free when every mapping, handle and descriptor of it
// is gone in every process, even after kill -9. A thread per stream performs copies with a delay,
// and fresh memory is poison, so that a missing wait or a missing zeroing shows. Uses that are
// wrong with real CUDA are refused: mapping part of an allocation, accessing memory before access
// is set (SIGSEGV), using CUDA after fork, and so on. Work that is queued breaks if its memory is
// unmapped, or if the access to it is changed, which CUDA does by unmapping it for a moment. After
// a sticky error every call fails until cuDevicePrimaryCtxReset.
//
// Two environment variables configure it, read at the first call:
//   MEMTIDE_FAKE_CUDA=dir=/dev/shm/x,memory=256MiB,devices=2,name=Fake,driver=none,descriptors=no,
//       legacy_ipc=no,compute_mode=exclusive,mps=yes,mig=yes,import=no,open_ipc=no,
//       coherent=yes,
//       maps_under_work=no,time_slices=yes,delay_us=200,cost_us:cuMemMap=2,tensors=backend,
//       pinned=512MiB,pinned_mb_s=12000,pageable_mb_s=4000,numa_node=1,pci=0000:17:00.0,
//       mends=no,card=base/cuda/fake/cards/h100,dilation=20
//     All settings are optional. dir: the shared directory, from which the UUIDs follow; by default
//     a private one that is removed when the process ends. memory: of each device [1 GiB]. driver:
//     "no-context-events" lacks cuCtxRecordEvent, as drivers before CUDA 12.5; "too-old" is one
//     that memtide refuses; "none" is missing; "no-uvm" fails as if the module nvidia-uvm is not
//     loaded. compute_mode: "exclusive" lets one process make a context, unless mps=yes;
//     "prohibited" lets none. mig: the devices are MIG instances, of which a
//     process sees the first of CUDA_VISIBLE_DEVICES. coherent: the devices say that they read host
//     memory by the CPU's page tables. import, open_ipc: "no" refuses to
//     open another process's memory by descriptor or by legacy handle, whatever the attributes
//     promise. maps_under_work: with "no" a mapping that is made or removed while the process has
//     work ends the context. time_slices: with "yes" work waits for 25 ms where another process has
//     work that it has not waited for. cost_us:NAME: the time that each call of NAME takes [0].
//     tensors: "backend" closes device memory to the CPU, at any time, so that torch's tensors over
//     it need the backend of tests/fake_device; by default they are on the CPU. pinned: what this
//     process can pin; real limits are the machine's or the container's, and shared with others.
//     Beyond it cuMemHostRegister and cuMemHostAlloc are out of memory. pinned_mb_s, pageable_mb_s:
//     the rates of each stream's copies by their host memory, in 10^6 bytes a second [as fast as
//     memory allows]. numa_node: what the driver says is the closest node [it does not know]. pci:
//     the devices' PCI id. mends: with "no", every call after the first fault fails with its error,
//     resets too, as when a GPU falls off the bus. card: a file with what calls, copies and kernels
//     cost on a card, which are played `dilation` times as slowly; no bytes move then and no kernel
//     computes (card.h). pinned_mb_s and pageable_mb_s do not count then.
//   MEMTIDE_FAKE_CUDA_FAULTS=cuMemCreate:3=2,cuMemcpyHtoDAsync:5=700
//     The third cuMemCreate of this process fails with error 2, and so on. "*" counts all calls.
// CUDA_VISIBLE_DEVICES works as with CUDA.
//
// A device is lost, as by a reset or an Xid, when the file lost-N of the shared directory (N: its
// number) gets one more byte: every process that has a context there finds that all calls that need
// it fail from now on, resets too. While the file gone-N exists no process can make a context: the
// device has fallen off the bus.
//
// Copies from and to pageable memory are asynchronous here, which real ones are not: CUDA returns
// when it has staged the bytes in, or when they have arrived. So a missing wait shows here only.
// Streams have no link in common: two streams of one direction copy at twice the rate. A copy takes
// CPU time here, as nothing but the CPU moves the bytes. To unregister memory under a queued copy
// breaks the copy; what CUDA does then is not documented.
//
// Not implemented: streams without CU_STREAM_NON_BLOCKING do not wait for the default stream, nor
// it for them. All functions are thread-safe.
#ifndef MEMTIDE_BASE_CUDA_FAKE_FAKE_CUDA_H_
#define MEMTIDE_BASE_CUDA_FAKE_FAKE_CUDA_H_

#include <cuda.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/clock.h"

namespace memtide::fake_cuda {

// Fills fresh memory and freed memory.
inline constexpr char kPoison = static_cast<char>(0xDB);

// Makes the n-th call of `name` from now on (counted from 1) fail with `code`. "*" stands for any
// function.
void FailCall(const std::string& name, uint64_t n, int code);
// Removes the faults that have not happened yet.
void ClearFaults();
// The number of calls of `name`; "*" counts all functions that can fail.
uint64_t CallCount(const std::string& name);

// Memory that a kernel uses.
struct KernelOperand {
  CUdeviceptr address = 0;
  size_t size = 0;  // In bytes.
  bool written = false;
};
// A launch of a kernel, as the CPU plays it: `run` gets the addresses where it can access the
// operands' bytes, in their order, and runs once in the stream's thread. It must not call the fake.
struct PlayedKernel {
  std::vector<KernelOperand> operands;
  std::function<void(const std::vector<void*>& operands)> run;
};
// Makes that of the parameters of a launch.
using PlayKernel = PlayedKernel (*)(void** parameters);
// Modules, whatever their code is, have a kernel of this name from now on. It may use memory that
// is mapped when it runs; other memory is an illegal access.
void DefineKernel(const std::string& name, PlayKernel play);

// A thread of the process captures a CUDA graph on a stream that the default stream waits for, or
// on another (CU_STREAM_NON_BLOCKING). Captures are in CUDA's global mode, and the fake has only
// some calls that invalidate them: to wait for the context, to record an event for it, and to query
// an event.
enum class CaptureOn { kBlockingStream, kOtherStream };
void BeginCapture(CaptureOn stream);
// Returns whether nothing has invalidated the capture.
bool EndCapture();

// Sets the delay of copies.
void SetDelay(Duration delay);
// Sets the time that each call of `name` takes.
void SetCost(const std::string& name, Duration cost);

// Sets how much host memory this process can pin. Zero: any amount.
void SetPinnedLimit(Bytes limit);
// Sets the rates of copies from and to pinned and pageable host memory, in bytes a second for each
// stream. Zero: as fast as memory allows.
void SetRates(Bytes pinned, Bytes pageable);
// Host memory that this process has pinned now.
Bytes PinnedBytes();
// The bytes of all copies from and to host memory that is not pinned that were queued so far.
Bytes PageableBytes();

// The fake's addresses are the CPU's.
inline CUdeviceptr DeviceAddress(const void* memory) {
  return reinterpret_cast<CUdeviceptr>(memory);
}

// The numbers of CUDA objects that this process holds. All zero after a clean shutdown.
struct Holdings {
  uint64_t handles = 0, reservations = 0, mappings = 0, registrations = 0, streams = 0, events = 0;

  bool empty() const {
    return handles + reservations + mappings + registrations + streams + events == 0;
  }
};
Holdings Held();

}  // namespace memtide::fake_cuda

#endif  // MEMTIDE_BASE_CUDA_FAKE_FAKE_CUDA_H_
