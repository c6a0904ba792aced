// The release: the content of the file VERSION, as --version, InspectNode, memtide_build_info and
// memtide_version() show it. A constant with the lifetime of the program; any thread may read it.
#ifndef MEMTIDE_BASE_VERSION_H_
#define MEMTIDE_BASE_VERSION_H_

namespace memtide {

extern const char* const kVersion;  // "MAJOR.MINOR.PATCH"

}  // namespace memtide

#endif  // MEMTIDE_BASE_VERSION_H_
