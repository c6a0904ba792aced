#include "base/cuda/fake/importer_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace memtide {
namespace {

constexpr int kPassedFd = 3;

// Runs in the child after fork(), so it makes only system calls.
[[noreturn]] void Become(int in, int out, int passed, char* const* arguments) {
  dup2(in, STDIN_FILENO);
  dup2(out, STDOUT_FILENO);
  if (passed >= 0) dup2(passed, kPassedFd);
  execv(arguments[0], arguments);
  _exit(127);
}

}  // namespace

SharedFakeCuda::SharedFakeCuda(const std::string& more) : directory_("/dev/shm/fake-cuda-XXXXXX") {
  MEMTIDE_CHECK(mkdtemp(&directory_[0]) != nullptr) << directory_ << ": " << std::strerror(errno);
  setenv("MEMTIDE_FAKE_CUDA", absl::StrCat("dir=", directory_, ",", more).c_str(), 1);
}

SharedFakeCuda::~SharedFakeCuda() {
  std::error_code ignored;
  std::filesystem::remove_all(directory_, ignored);
}

ImporterProcess::ImporterProcess(const MemoryExport& exported) {
  const char* const program = std::getenv("CUDA_IMPORTER");
  MEMTIDE_CHECK(program != nullptr);
  std::string words[4] = {program, "ipc", absl::BytesToHexString(exported.ipc_handle), ""};
  if (exported.kind == MemoryKind::kCudaDescriptor) {
    words[1] = "fd";
    words[2] = absl::StrCat(kPassedFd);
    words[3] = absl::StrCat(exported.size.count());
  }
  char* arguments[5] = {};
  for (int i = 0; i < 4 && !words[i].empty(); ++i) arguments[i] = &words[i][0];
  int to[2], from[2];
  MEMTIDE_CHECK(pipe2(to, O_CLOEXEC) == 0 && pipe2(from, O_CLOEXEC) == 0);
  // Duplicate above the numbers that the descriptors get in the child, so that dup2 there
  // overwrites none and clears close-on-exec.
  const int passed = exported.fd < 0 ? -1 : fcntl(exported.fd, F_DUPFD_CLOEXEC, 16);
  const int in = fcntl(to[0], F_DUPFD_CLOEXEC, 16), out = fcntl(from[1], F_DUPFD_CLOEXEC, 16);
  pid_ = fork();
  MEMTIDE_CHECK(pid_ >= 0) << std::strerror(errno);
  if (pid_ == 0) Become(in, out, passed, arguments);
  for (const int fd : {to[0], from[1], passed, in, out}) close(fd);
  to_ = fdopen(to[1], "w");
  from_ = fdopen(from[0], "r");
  MEMTIDE_CHECK(ReadLine() == "ready");
}

ImporterProcess::~ImporterProcess() {
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
  fclose(to_);
  fclose(from_);
}

std::string ImporterProcess::Peek(Bytes offset, Bytes size) {
  return Ask(absl::StrCat("peek ", offset.count(), " ", size.count()));
}

void ImporterProcess::Poke(Bytes offset, const std::string& word) {
  MEMTIDE_CHECK(Ask(absl::StrCat("poke ", offset.count(), " ", word)) == "done");
}

std::string ImporterProcess::Ask(const std::string& line) {
  std::fprintf(to_, "%s\n", line.c_str());
  std::fflush(to_);
  return ReadLine();
}

std::string ImporterProcess::ReadLine() {
  char line[4096];
  MEMTIDE_CHECK(std::fgets(line, sizeof(line), from_) != nullptr) << "the importer ended";
  return std::string(line, std::strlen(line) - 1);
}

}  // namespace memtide
