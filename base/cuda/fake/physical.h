// Physical: a piece of a fake device's memory, shared by all processes that use its directory.
//
// It is a file whose open file description holds a shared lock. Duplicated or passed descriptors
// and mappings keep that description, and thus the lock, in any process. So the memory is free when
// another descriptor can lock the file exclusively; then it is unlinked. Thread-safe and
// process-safe: a lock on the directory serializes searching and creating.
#ifndef MEMTIDE_BASE_CUDA_FAKE_PHYSICAL_H_
#define MEMTIDE_BASE_CUDA_FAKE_PHYSICAL_H_

#include <cstdint>
#include <memory>
#include <string>

#include "base/bytes.h"

namespace memtide::fake_cuda {

inline constexpr size_t kGranularity = size_t{2} << 20;

struct PhysicalFacts {
  int device = 0;
  uint64_t size = 0;
  bool exportable = false;  // It can be exported as a descriptor.
};

// Memory that nothing writes takes none of the machine's.
enum class Content { kPoison, kNone };

class Physical {
 public:
  // Creates memory. Null: less than its size is left of `capacity`.
  static std::shared_ptr<Physical> Create(const std::string& directory, Bytes capacity,
                                          const PhysicalFacts& facts, Content content);
  // Opens the memory of a descriptor that another process exported. The caller keeps `fd`. Null:
  // `fd` is not memory in `directory`.
  static std::shared_ptr<Physical> FromDescriptor(const std::string& directory, int fd);
  // Opens memory by its name. Null: it has been freed.
  static std::shared_ptr<Physical> Open(const std::string& directory, const std::string& name);

  Physical(const PhysicalFacts& facts, std::string name, int fd)
      : facts_(facts), name_(std::move(name)), fd_(fd) {}
  ~Physical();
  Physical(const Physical&) = delete;
  Physical& operator=(const Physical&) = delete;

  const PhysicalFacts& facts() const { return facts_; }
  const std::string& name() const { return name_; }
  int fd() const { return fd_; }

 private:
  const PhysicalFacts facts_;
  const std::string name_;
  const int fd_;
};

// The memory of the device that all processes use now.
Bytes UsedMemory(const std::string& directory, int device);

// Creates a directory that is removed when this process ends.
std::string MakePrivateDirectory();

// How often the device was lost, and whether it cannot be used now (fake_cuda.h).
uint64_t LossesOf(const std::string& directory, int device);
bool IsGone(const std::string& directory, int device);

}  // namespace memtide::fake_cuda

#endif  // MEMTIDE_BASE_CUDA_FAKE_PHYSICAL_H_
