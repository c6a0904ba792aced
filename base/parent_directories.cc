#include "base/parent_directories.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <deque>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"

namespace memtide {
namespace {

constexpr int kMostLinks = 40;  // As the kernel follows.

// Puts the components of `path` in front.
void Prepend(const std::filesystem::path& path, std::deque<std::string>* components) {
  std::deque<std::string> before;
  for (const std::filesystem::path& part : path.relative_path()) {
    if (!part.empty() && part != ".") before.push_back(part.string());
  }
  components->insert(components->begin(), before.begin(), before.end());
}

bool IsWritableByOthers(const struct stat& directory) {
  if ((directory.st_mode & S_IWOTH) != 0) return true;
  return (directory.st_mode & S_IWGRP) != 0 && directory.st_gid != 0 &&
         directory.st_gid != getegid();
}

// Whether other users could replace `child`, which is in `directory`.
absl::Status CheckChild(const std::string& path, const std::string& directory,
                        const struct stat& directory_info, const struct stat& child) {
  if (!IsWritableByOthers(directory_info)) return absl::OkStatus();
  // With the sticky bit, only its owner renames a file or removes it.
  const bool is_sticky = (directory_info.st_mode & S_ISVTX) != 0;
  if (is_sticky && (child.st_uid == geteuid() || child.st_uid == 0)) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrFormat(
      "other users may write to \"%s\" (mode %04o), and so replace what \"%s\" names. Use chmod "
      "go-w \"%s\", or choose a path of your own",
      directory, directory_info.st_mode & 07777, path, directory));
}

absl::Status CannotRead(const std::string& path, const std::string& what, int error) {
  return absl::FailedPreconditionError(
      absl::StrCat("\"", path, "\": cannot read \"", what, "\": ", std::strerror(error)));
}

}  // namespace

absl::Status CheckParents(const std::string& path) {
  std::deque<std::string> components;
  Prepend(std::filesystem::absolute(path), &components);
  std::filesystem::path at = "/";
  int links = 0;
  while (!components.empty()) {
    const std::string name = components.front();
    components.pop_front();
    if (name == "..") {
      at = at.parent_path();
      continue;
    }
    const std::filesystem::path child = at / name;
    struct stat directory_info, child_info;
    if (stat(at.c_str(), &directory_info) != 0) return CannotRead(path, at.string(), errno);
    if (lstat(child.c_str(), &child_info) != 0) return CannotRead(path, child.string(), errno);
    MEMTIDE_RETURN_IF_ERROR(CheckChild(path, at.string(), directory_info, child_info));
    if (!S_ISLNK(child_info.st_mode)) {
      at = child;
      continue;
    }
    std::error_code error;
    const std::filesystem::path target = std::filesystem::read_symlink(child, error);
    if (error) return CannotRead(path, child.string(), error.value());
    if (++links > kMostLinks) return CannotRead(path, child.string(), ELOOP);
    if (target.is_absolute()) at = "/";
    Prepend(target, &components);
  }
  return absl::OkStatus();
}

}  // namespace memtide
