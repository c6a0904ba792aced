// ImporterProcess: a child process that has opened device memory. SharedFakeCuda: a directory
// through which processes share fake devices. For tests; use from one thread.
#ifndef MEMTIDE_BASE_CUDA_FAKE_IMPORTER_PROCESS_H_
#define MEMTIDE_BASE_CUDA_FAKE_IMPORTER_PROCESS_H_

#include <sys/types.h>

#include <cstdio>
#include <string>

#include "base/bytes.h"
#include "base/memory_kind.h"

namespace memtide {

// Sets MEMTIDE_FAKE_CUDA to a new directory and the settings `more`; the destructor removes the
// directory. REQUIRES: it is created before the first CUDA call, for example as a static variable
// of the test.
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
  // Starts the program $CUDA_IMPORTER, and returns when it has opened the memory.
  explicit ImporterProcess(const MemoryExport& exported);
  // Ends the process with SIGKILL.
  ~ImporterProcess();
  ImporterProcess(const ImporterProcess&) = delete;
  ImporterProcess& operator=(const ImporterProcess&) = delete;

  std::string Peek(Bytes offset, Bytes size);
  // REQUIRES: `word` contains no white space.
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
