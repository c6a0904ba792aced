#include "tests/integration/child_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "base/check.h"

namespace memtide {
namespace {

std::vector<char*> Pointers(std::vector<std::string>* texts) {
  std::vector<char*> pointers;
  for (std::string& text : *texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace

ChildProcess::ChildProcess(const char* program, const std::vector<std::string>& arguments,
                           const std::vector<std::string>& environment) {
  const char* const path = std::getenv(program);
  MEMTIDE_CHECK(path != nullptr) << "the test's BUILD rule sets " << program;
  std::vector<std::string> words = {path};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<std::string> variables = environment;
  for (char** variable = environ; *variable != nullptr; ++variable) variables.push_back(*variable);
  const std::vector<char*> word_pointers = Pointers(&words);
  const std::vector<char*> variable_pointers = Pointers(&variables);
  // A write to a program that has ended returns an error; Ask then returns an empty line.
  signal(SIGPIPE, SIG_IGN);
  int to[2], from[2];
  MEMTIDE_CHECK(pipe2(to, O_CLOEXEC) == 0 && pipe2(from, O_CLOEXEC) == 0) << std::strerror(errno);
  pid_ = fork();
  MEMTIDE_CHECK(pid_ >= 0) << std::strerror(errno);
  if (pid_ == 0) {
    dup2(to[0], STDIN_FILENO);
    dup2(from[1], STDOUT_FILENO);
    dup2(from[1], STDERR_FILENO);
    execve(word_pointers[0], word_pointers.data(), variable_pointers.data());
    _exit(127);
  }
  close(to[0]);
  close(from[1]);
  to_ = fdopen(to[1], "w");
  from_ = fdopen(from[0], "r");
  MEMTIDE_CHECK(to_ != nullptr && from_ != nullptr) << std::strerror(errno);
}

ChildProcess::~ChildProcess() {
  Kill();
  std::fclose(to_);
  std::fclose(from_);
}

std::string ChildProcess::Ask(const std::string& line) {
  std::fprintf(to_, "%s\n", line.c_str());
  std::fflush(to_);
  return ReadLine();
}

std::string ChildProcess::ReadLine() {
  char line[4096];
  if (std::fgets(line, sizeof(line), from_) == nullptr) return "";
  return std::string(line, std::strcspn(line, "\n"));
}

void ChildProcess::Kill() {
  if (pid_ < 0) return;
  kill(pid_, SIGKILL);
  MEMTIDE_CHECK(waitpid(pid_, nullptr, 0) == pid_) << std::strerror(errno);
  pid_ = -1;
}

int ChildProcess::Wait(std::string* output) {
  MEMTIDE_CHECK(pid_ >= 0);
  char bytes[4096];
  size_t got;
  while ((got = std::fread(bytes, 1, sizeof(bytes), from_)) > 0) output->append(bytes, got);
  int status;
  MEMTIDE_CHECK(waitpid(pid_, &status, 0) == pid_) << std::strerror(errno);
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace memtide
