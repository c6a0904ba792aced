#include "daemon/device/first_use/first_use.h"

#include <google/protobuf/text_format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/bytes.h"
#include "base/status_macros.h"
#include "base/version.h"
#include "daemon/device/first_use/ask_gpu.h"
#include "daemon/device/first_use/helper.h"
#include "daemon/device/remote/helper_process.h"
#include "daemon/device/remote/packet.h"

namespace memtide {
namespace {

// Copies that are slower than this share of their own speed beside another process's work take
// turns with it.
constexpr double kOverlapping = 0.7;
constexpr double kSlowPinning = 0.5e9;  // Bytes a second.
// An asker waits for six answers of its helper, and says itself which of them did not come.
constexpr Duration kAskerPatience = std::chrono::seconds(45);

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Thu ...": the first word that is a
// version.
std::string LoadedDriver() {
  const std::string text = ReadFile("/proc/driver/nvidia/version");
  for (const absl::string_view word : absl::StrSplit(text, absl::ByAnyChar(" \n"))) {
    const size_t digits = word.find_first_not_of("0123456789");
    if (digits != 0 && digits != absl::string_view::npos && word[digits] == '.') {
      return std::string(word);
    }
  }
  return std::string();
}

std::string FromEnvironment(const char* name, absl::string_view rest) {
  const char* const value = std::getenv(name);
  return value == nullptr || *value == 0 ? std::string() : absl::StrCat(value, rest);
}

std::string Directory() {
  std::string found = FromEnvironment("CACHE_DIRECTORY", "/gpus");
  if (found.empty()) found = FromEnvironment("XDG_CACHE_HOME", "/memtide/gpus");
  if (found.empty()) found = FromEnvironment("HOME", "/.cache/memtide/gpus");
  return found;
}

std::string PathOf(const CudaDeviceFacts& facts, const MeetGpuOptions& options) {
  return absl::StrCat(options.directory, "/", facts.FormatUuid(), "-", options.driver, "-",
                      kVersion, ".textproto");
}

// Whether there is a file that speaks of the driver that is loaded.
bool IsCurrent(const std::string& path, const MeetGpuOptions& options) {
  constexpr time_t kDay = 24 * 60 * 60;
  struct stat file;
  if (options.directory.empty() || stat(path.c_str(), &file) != 0) return false;
  // A driver whose version is unknown (in WSL2 and some containers) may have been updated since.
  // tidy(wall-clock): the age of a file, whose answers are only asked again if it is wrong.
  return !options.driver.empty() || time(nullptr) - file.st_mtime < kDay;
}

void MakeDirectories(const std::string& path) {
  for (size_t end = path.find('/', 1); end != std::string::npos; end = path.find('/', end + 1)) {
    mkdir(path.substr(0, end).c_str(), S_IRWXU);
  }
  mkdir(path.c_str(), S_IRWXU);
}

// Another daemon may read or write the same file, so that it appears whole.
void Keep(const v1::GpuAnswers& answers, const std::string& path) {
  std::string text;
  google::protobuf::TextFormat::PrintToString(answers, &text);
  const std::string unfinished = absl::StrCat(path, ".", getpid());
  std::ofstream file(unfinished);
  file << text;
  file.close();
  if (file.fail() || std::rename(unfinished.c_str(), path.c_str()) != 0) {
    std::remove(unfinished.c_str());
  }
}

std::string Speed(double bytes_per_second) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f GB/s", bytes_per_second / 1e9);
  return text;
}

std::string FailureOf(const v1::GpuAnswers& answers, absl::string_view what) {
  for (const std::string& failure : answers.failures()) {
    if (absl::string_view(failure).substr(0, what.size()) == what) return failure;
  }
  return std::string(what);
}

absl::StatusOr<v1::GpuAnswers> AskInProcess(int ordinal, const std::string& program) {
  MEMTIDE_ASSIGN_OR_RETURN(
      HelperProcess asker,
      HelperProcess::Start(program, {kAskerFlag, absl::StrCat(ordinal)}, kAskerPatience));
  MEMTIDE_ASSIGN_OR_RETURN(const std::string text, asker.Answer());
  v1::GpuAnswers answers;
  if (google::protobuf::TextFormat::ParseFromString(text, &answers)) return answers;
  return absl::UnavailableError("the answers of the GPU cannot be read");
}

absl::StatusOr<v1::GpuAnswers> AskHere(int ordinal) {
  MEMTIDE_ASSIGN_OR_RETURN(const std::vector<CudaDeviceFacts> devices, CudaDevices());
  for (const CudaDeviceFacts& facts : devices) {
    if (facts.ordinal == ordinal) return AskGpu(facts, ThisProcess().program);
  }
  return absl::NotFoundError(absl::StrCat("there is no GPU ", ordinal));
}

}  // namespace

int RunGpuAsker(int ordinal) {
  const absl::StatusOr<v1::GpuAnswers> answers = AskHere(ordinal);
  std::string text = absl::StrCat("error ", answers.status().message());
  if (answers.ok()) {
    google::protobuf::TextFormat::PrintToString(*answers, &text);
    text = absl::StrCat("ok ", text);
  }
  return SendPacket(kHelperSocket, {text, -1}).ok() ? 0 : 1;
}

MeetGpuOptions ThisProcess() { return {"/proc/self/exe", Directory(), LoadedDriver()}; }

absl::StatusOr<v1::GpuAnswers> MeetGpu(const CudaDeviceFacts& facts,
                                       const MeetGpuOptions& options) {
  const std::string path = PathOf(facts, options);
  v1::GpuAnswers answers;
  const std::string file = IsCurrent(path, options) ? ReadFile(path) : std::string();
  if (!file.empty() && google::protobuf::TextFormat::ParseFromString(file, &answers)) {
    return answers;
  }
  MEMTIDE_ASSIGN_OR_RETURN(answers, AskInProcess(facts.ordinal, options.program));
  answers.set_driver(options.driver);
  answers.set_memtide(kVersion);
  // A failure may be a passing one, and is asked again by the next daemon.
  if (!options.directory.empty() && answers.failures().empty()) {
    MakeDirectories(options.directory);
    Keep(answers, path);
  }
  return answers;
}

std::vector<std::string> Fallbacks(const CudaDeviceFacts& facts, const v1::GpuAnswers& answers) {
  std::vector<std::string> lines;
  if (facts.descriptors && !answers.descriptors()) {
    lines.push_back(absl::StrCat(
        FailureOf(answers, "passing memory by descriptor"), ": ",
        answers.legacy_ipc() ? "legacy CUDA IPC is used instead" : "use --device none"));
  }
  if (!answers.maps_under_work()) {
    lines.push_back(absl::StrCat(FailureOf(answers, "mapping memory beside running work"),
                                 ": programs wait for all their GPU work before they map or unmap "
                                 "a chunk, which is slower"));
  }
  if (answers.copy_bytes_per_second_beside_work() <
      kOverlapping * answers.copy_bytes_per_second()) {
    lines.push_back(absl::StrCat("copies run at ", Speed(answers.copy_bytes_per_second()),
                                 ", and at ", Speed(answers.copy_bytes_per_second_beside_work()),
                                 " beside another process's work: both take turns on this GPU. "
                                 "Under CUDA's MPS (nvidia-cuda-mps-control -d) they may overlap"));
  }
  if (answers.pinned_bytes_per_second() == 0) {
    lines.push_back(absl::StrCat(FailureOf(answers, "pinning host memory"),
                                 ": copies go through other memory, which is slower"));
  } else if (!answers.coherent() && answers.pinned_bytes_per_second() < kSlowPinning) {
    lines.push_back(absl::StrCat("host memory is pinned at ",
                                 Speed(answers.pinned_bytes_per_second()),
                                 " only, so a large host pool takes long to start; huge pages help "
                                 "(/sys/kernel/mm/transparent_hugepage/shmem_enabled)"));
  }
  return lines;
}

std::string Describe(const v1::GpuAnswers& answers) {
  const auto yes = [](bool is) { return is ? "yes" : "no"; };
  char longest[64];
  std::snprintf(longest, sizeof(longest), " (at most %.2f ms beside copies)",
                answers.longest_mapping_ms());
  const std::string mapping =
      answers.descriptors()
          ? absl::StrCat("; maps beside running work: ", yes(answers.maps_under_work()),
                         answers.maps_under_work() ? longest : "")
          : std::string();
  return absl::StrCat(answers.gpu(), ": memory passes by descriptor: ", yes(answers.descriptors()),
                      ", by legacy IPC: ", yes(answers.legacy_ipc()), mapping, "; copies ",
                      Speed(answers.copy_bytes_per_second()), ", beside another process's work ",
                      Speed(answers.copy_bytes_per_second_beside_work()),
                      answers.coherent()
                          ? "; host memory is coherent with it, and not pinned"
                          : absl::StrCat("; pins ", Speed(answers.pinned_bytes_per_second())));
}

}  // namespace memtide
