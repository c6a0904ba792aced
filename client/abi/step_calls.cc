// Implements client/memtide.h: commits of optimizer steps, versions and chunk ids.
#include <string>
#include <vector>

#include "base/status_macros.h"
#include "client/abi/client_call.h"
#include "client/memtide.h"

namespace {

using memtide::ChunkId;
using memtide::client::CheckArray;
using memtide::client::CopyText;
using memtide::client::LeaseClient;
using memtide::client::NullArgument;
using memtide::client::PlaceId;
using memtide::client::PlaceRange;
using memtide::client::Places;
using memtide::client::PlacesAt;
using memtide::client::WithLeases;
using memtide::client::WithPlaces;

}  // namespace

extern "C" {

int memtide_commit(memtide_client* client, uint64_t step, const uint32_t* places,
                   const uint32_t* shadow_places, size_t count, const uint64_t* ids,
                   const uint64_t* versions, int how, const void* manifest, size_t manifest_bytes) {
  return WithPlaces(client, places, count, [&](LeaseClient& leases, Places at) -> absl::Status {
    MEMTIDE_RETURN_IF_ERROR(CheckArray(shadow_places, count, "shadow_places"));
    MEMTIDE_RETURN_IF_ERROR(CheckArray(manifest, manifest_bytes, "manifest"));
    memtide::client::CommitRequest commit;
    commit.committed.step = step;
    // The manifest is opaque here: the next process of the job reads it to resume.
    commit.committed.manifest.assign(static_cast<const char*>(manifest), manifest_bytes);
    commit.keep_old_content = (how & MEMTIDE_KEEP_OLD_CONTENT) != 0;
    commit.with_all_ranks = (how & MEMTIDE_WITH_ALL_RANKS) != 0;
    if ((ids == nullptr) != (versions == nullptr)) {
      return NullArgument(ids == nullptr ? "ids" : "versions");
    }
    for (size_t i = 0; ids != nullptr && i < count; ++i) {
      commit.unwritten.push_back({ChunkId(ids[i]), versions[i]});
    }
    return leases.Commit(commit, at, PlacesAt(shadow_places, count));
  });
}

int memtide_committed(memtide_client* client, uint64_t* step, char** manifest,
                      size_t* manifest_bytes) {
  return WithLeases(client, [&](LeaseClient& leases) -> absl::Status {
    if (step == nullptr) return NullArgument("step");
    if (manifest == nullptr) return NullArgument("manifest");
    if (manifest_bytes == nullptr) return NullArgument("manifest_bytes");
    // A caller may free the text even after an error.
    *manifest = nullptr;
    const memtide::client::CommittedStep committed = leases.committed();
    *step = committed.step;
    *manifest_bytes = committed.manifest.size();
    return CopyText(committed.manifest, manifest);
  });
}

int memtide_versions(memtide_client* client, const uint32_t* places, size_t count, uint64_t* ids,
                     uint64_t* versions) {
  return WithPlaces(client, places, count, [&](LeaseClient& leases, Places at) -> absl::Status {
    MEMTIDE_RETURN_IF_ERROR(CheckArray(ids, count, "ids"));
    MEMTIDE_RETURN_IF_ERROR(CheckArray(versions, count, "versions"));
    MEMTIDE_ASSIGN_OR_RETURN(const std::vector<memtide::client::ChunkVersion> found,
                             leases.Versions(at));
    // A version says something only with its id: the place may have another chunk later.
    for (size_t i = 0; i < found.size(); ++i) {
      ids[i] = found[i].chunk.value();
      versions[i] = found[i].version;
    }
    return absl::OkStatus();
  });
}

int memtide_chunk_ids(memtide_client* client, uint32_t first_place, uint32_t count, uint64_t* ids) {
  return WithLeases(client, [&](LeaseClient& leases) -> absl::Status {
    MEMTIDE_RETURN_IF_ERROR(CheckArray(ids, count, "ids"));
    MEMTIDE_ASSIGN_OR_RETURN(const std::vector<ChunkId> chunks,
                             leases.ChunkIds(PlaceRange{PlaceId(first_place), count}));
    for (size_t i = 0; i < chunks.size(); ++i) ids[i] = chunks[i].value();
    return absl::OkStatus();
  });
}

int memtide_attach(memtide_client* client, const uint64_t* ids, uint32_t count,
                   uint32_t* first_place) {
  return WithLeases(client, [&](LeaseClient& leases) -> absl::Status {
    MEMTIDE_RETURN_IF_ERROR(CheckArray(ids, count, "ids"));
    if (first_place == nullptr) return NullArgument("first_place");
    std::vector<ChunkId> chunks;
    for (uint32_t i = 0; i < count; ++i) chunks.emplace_back(ids[i]);
    MEMTIDE_ASSIGN_OR_RETURN(const PlaceRange range, leases.Attach(chunks));
    *first_place = range.first.value();
    return absl::OkStatus();
  });
}

}  // extern "C"
