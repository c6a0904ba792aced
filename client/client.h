// Client: a session with the node's daemon, and chunks at fixed addresses. The C++ interface.
//
// See client/memtide.h for what allocation, acquiring and touching mean: the C interface is a thin
// layer over this one. Thread-safe. A client belongs to the process that opened it: in a forked
// child every call returns FAILED_PRECONDITION, and destroying it does nothing.
//
//   MEMTIDE_ASSIGN_OR_RETURN(std::unique_ptr<Client> client, Client::Open({}));
//   MEMTIDE_ASSIGN_OR_RETURN(PlaceRange weights, client->Allocate(8, ChunkKind::kParameter));
//   MEMTIDE_ASSIGN_OR_RETURN(Use use, client->Use({weights.first}, Access::kWrite));
//   memset(client->address(weights.first), 0, client->properties().chunk_size.count());
#ifndef MEMTIDE_CLIENT_CLIENT_H_
#define MEMTIDE_CLIENT_CLIENT_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "client/address_space.h"
#include "client/dlpack.h"
#include "client/fault_loop.h"
#include "client/host_space.h"
#include "client/lease_keeper.h"
#include "client/lender.h"
#include "client/regions.h"
#include "client/segv_handler.h"
#include "client/types.h"

namespace memtide::client {

class Client;

// Chunks in use: acquired, and released when this is destroyed. Move-only; must not outlive its
// client.
class Use {
 public:
  Use(Use&& other) noexcept;
  Use& operator=(Use&& other) noexcept;
  ~Use();

 private:
  friend class Client;
  Use(Client* client, std::vector<PlaceId> places);
  void End();

  Client* client_ = nullptr;
  std::vector<PlaceId> places_;
};

class Client {
 public:
  struct Options {
    std::string socket_dir;  // Empty: DefaultSocketDir().
    std::string program;     // For people, shown in listings.
    JobOptions job;
    Bytes addresses = GiB(1024);  // To reserve; costs no memory.
  };
  struct Properties {
    char* base = nullptr;  // Place i is at base + i * chunk_size. Null: no fixed addresses.
    uint32_t places = 0;
    bool touches = false;        // A touch of what is not mapped becomes a lease.
    bool kernel_faults = false;  // Of system calls, too.
    AddressSpace::DlDevice device;
    Job job;
  };

  // UNAVAILABLE: no daemon at the socket directory.
  static absl::StatusOr<std::unique_ptr<Client>> Open(const Options& options);
  // The same over another lender: for tests.
  static absl::StatusOr<std::unique_ptr<Client>> OpenWith(std::unique_ptr<Lender> lender,
                                                          const Options& options);
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;
  // Ends the session. The addresses are inaccessible afterwards.
  ~Client();

  const Properties& properties() const { return properties_; }
  // Of a place without a fixed address: while its chunk is in use.
  char* address(PlaceId place) const { return space_->address(place); }

  absl::StatusOr<PlaceRange> Allocate(uint32_t count, ChunkKind kind,
                                      Unwritten unwritten = Unwritten::kZeros);
  absl::Status Free(PlaceRange range);

  // No deadline: as long as the daemon allows. Zero: only what needs no wait.
  absl::Status Acquire(absl::Span<const PlaceId> places, Access access,
                       absl::optional<Duration> deadline = absl::nullopt);
  absl::Status Release(absl::Span<const PlaceId> places);
  // Acquire and Release as one object.
  absl::StatusOr<class Use> Use(std::vector<PlaceId> places, Access access,
                                absl::optional<Duration> deadline = absl::nullopt);

  // As memtide_moment and memtide_end_iteration.
  absl::Status BeginMoment(Moment moment);
  absl::Status EndIteration();
  absl::Status Prefetch(absl::Span<const PlaceId> places);
  absl::Status Evict(absl::Span<const PlaceId> places);
  absl::Status Flush();
  // As memtide_wrap and memtide_take_returned.
  absl::StatusOr<void*> Wrap(const Span& span) const;
  size_t TakeReturned(Span* spans, size_t capacity) ABSL_LOCKS_EXCLUDED(spans_mutex_);
  // As memtide_step, memtide_publish, memtide_published, memtide_versions, memtide_chunk_ids and
  // memtide_attach.
  // Step returns how many gradients are not finite, where the part is to count them.
  absl::StatusOr<uint64_t> Step(const StepPart& part);
  absl::Status Publish(const Publication& publication, absl::Span<const PlaceId> places,
                       absl::Span<const PlaceId> fresh) ABSL_LOCKS_EXCLUDED(published_mutex_);
  Published published() const ABSL_LOCKS_EXCLUDED(published_mutex_);
  absl::StatusOr<std::vector<ChunkVersion>> Versions(absl::Span<const PlaceId> places);
  absl::StatusOr<std::vector<ChunkId>> ChunkIds(PlaceRange range) const;
  absl::StatusOr<PlaceRange> Attach(const std::vector<ChunkId>& chunks);
  // As memtide_resize.
  absl::Status Resize(Bytes device_share, Duration deadline);

  absl::StatusOr<LeaseStats> stats() const;

 private:
  // Receives the session's events, from before the client is complete on.
  class Events;

  Client();
  absl::Status Start(std::unique_ptr<Lender> lender, const Options& options);
  // *watched: the same space where touches are to be answered.
  static absl::StatusOr<std::unique_ptr<AddressSpace>> ReserveSpace(
      const Job& job, const AddressSpace::Options& options, HostSpace** watched);
  absl::Status AnswerTouches(HostSpace* space);
  // FAILED_PRECONDITION in a forked child.
  absl::Status CheckProcess() const;
  void Abandon();

  const uint64_t generation_;
  Properties properties_;
  const Spans spans_;
  // Returned, but the program may have begun work on them that is not done.
  struct Cooling {
    Span span;
    uint64_t work = 0;
  };
  Mutex spans_mutex_;
  std::deque<Cooling> cooling_ ABSL_GUARDED_BY(spans_mutex_);
  mutable Mutex published_mutex_;
  Published published_ ABSL_GUARDED_BY(published_mutex_);
  std::unique_ptr<RegionTable> regions_;
  std::unique_ptr<Events> events_;
  std::unique_ptr<Lender> lender_;
  std::unique_ptr<AddressSpace> space_;
  std::unique_ptr<LeaseKeeper> keeper_;
  std::unique_ptr<FaultLoop> faults_;
  absl::optional<WatchedSpace> watched_;
  std::thread room_keeper_;
};

// $MEMTIDE_SOCKET_DIR; else /run/memtide when we are root or it exists; else
// $XDG_RUNTIME_DIR/memtide.
std::string DefaultSocketDir();

}  // namespace memtide::client

#endif  // MEMTIDE_CLIENT_CLIENT_H_
