// ImporterProcess: another process that has opened device memory; SharedFakeCuda: a directory in
// which the fake's processes find the same devices. For tests, from one thread.
#ifndef MEMTIDE_BASE_CUDA_FAKE_IMPORTER_PROCESS_H_
#define MEMTIDE_BASE_CUDA_FAKE_IMPORTER_PROCESS_H_

#include <sys/types.h>

#include <cstdio>
#include <string>

#include "base/bytes.h"
#include "base/memory_kind.h"

namespace memtide {

// Sets MEMTIDE_FAKE_CUDA to a new directory and `more`; the directory goes with it. Make it before
// the first call of CUDA, so as a static of the test.
class SharedFakeCuda {
 public:
  explicit SharedFakeCuda(const std::string& more);
  ~SharedFakeCuda();
  SharedFakeCuda(const SharedFakeCuda&) = delete;
  SharedFakeCuda& operator=(const SharedFakeCuda&) = delete;

 private:
  std::string directory_;
};

class ImporterProcess {
 public:
  // Returns when the memory is open there. The program is at $CUDA_IMPORTER.
  explicit ImporterProcess(const MemoryExport& exported);
  // Ends it by SIGKILL.
  ~ImporterProcess();
  ImporterProcess(const ImporterProcess&) = delete;
  ImporterProcess& operator=(const ImporterProcess&) = delete;

  std::string Peek(Bytes offset, Bytes size);
  // REQUIRES: `word` is one.
  void Poke(Bytes offset, const std::string& word);

 private:
  std::string Ask(const std::string& line);
  std::string ReadLine();

  pid_t pid_ = -1;
  FILE* to_ = nullptr;
  FILE* from_ = nullptr;
};

}  // namespace memtide

#endif  // MEMTIDE_BASE_CUDA_FAKE_IMPORTER_PROCESS_H_
