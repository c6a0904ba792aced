// Physical: a piece of a fake device's memory, shared by every process that knows its directory.
//
// A file there, whose open file description holds a shared lock. Descriptors of it that are
// duplicated or passed on, and mappings, keep that description and so the lock, in whatever
// process; so the memory is free when somebody else can lock the file exclusively, and then it is
// unlinked. Thread-safe, as are processes: a lock of the directory orders looking and making.
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
  bool exportable = false;  // As a descriptor.
};

class Physical {
 public:
  // Full of poison. Null: the device has not that much left of `capacity`.
  static std::shared_ptr<Physical> Create(const std::string& directory, Bytes capacity,
                                          const PhysicalFacts& facts);
  // Of a descriptor that another process made of memory in `directory`, which stays the caller's.
  // Null: it is not one.
  static std::shared_ptr<Physical> FromDescriptor(const std::string& directory, int fd);
  // By name. Null: it has been freed.
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

// What all processes use of the device now.
Bytes UsedMemory(const std::string& directory, int device);

// A directory that goes when this process ends.
std::string MakePrivateDirectory();

}  // namespace memtide::fake_cuda

#endif  // MEMTIDE_BASE_CUDA_FAKE_PHYSICAL_H_
