// Client: a session with the node's daemon, and chunks at fixed addresses. The C++ interface.
//
// The C interface, client/memtide.h, is a thin layer over this one and LeaseClient; it explains
// allocation, leases, page faults and errors. Methods without a comment here implement the memtide_
// function of the same name.
//
//   MEMTIDE_ASSIGN_OR_RETURN(std::unique_ptr<Client> client, Client::Open({}));
//   MEMTIDE_ASSIGN_OR_RETURN(PlaceRange weights,
//                            client->leases()->Allocate(8, ChunkKind::kParameter));
//   MEMTIDE_ASSIGN_OR_RETURN(Use use, client->Use({weights.first}, Access::kWrite));
//   memset(client->address(weights.first), 0, client->properties().chunk_size.count());
//
// Threads: a client owns four that handle page faults (on host memory), one that reclaims leases,
// and two of its DaemonSession. None of them runs the program's signal handlers.
//
// Thread safety: all methods may be called from any thread. A client belongs to the process that
// opened it: in a forked child calls return FAILED_PRECONDITION, leases() must not be used, and the
// destructor does nothing.
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
#include "client/lease/lease_client.h"
#include "client/lease/region_table.h"
#include "client/memory/address_space.h"
#include "client/memory/dlpack.h"
#include "client/memory/fault_loop.h"
#include "client/memory/host_space.h"
#include "client/memory/place.h"
#include "client/memory/segv_handler.h"
#include "client/rpc/daemon_session.h"

namespace memtide::client {

class Client;
class SessionEvents;

// A use of acquired chunks, which ends when this is destroyed. Move-only; must not outlive its
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
    DaemonAddress daemon;         // An empty socket_dir means DefaultSocketDir().
    v1::OpenRequest job;          // DaemonSession::Open() says what zeros mean.
    Bytes addresses = GiB(1024);  // Addresses to reserve; they cost no memory.
  };
  struct Properties {
    char* base = nullptr;  // Place i is at base + i * chunk_size. Null: no fixed address.
    uint32_t places = 0;
    bool handles_faults = false;  // An access to an unmapped chunk becomes a lease.
    bool kernel_faults = false;   // Also an access by a system call.
    bool needs_streams = false;   // CoverStreams makes waits for a GPU shorter.
    AddressSpace::DlDevice device;
    Job job;
  };

  // Connects to the daemon and opens the job. UNAVAILABLE: no daemon listens at socket_dir.
  static absl::StatusOr<std::unique_ptr<Client>> Open(const Options& options);
  // The same with the given session, for tests.
  static absl::StatusOr<std::unique_ptr<Client>> OpenWith(std::unique_ptr<DaemonSession> session,
                                                          const Options& options);
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;
  // Ends the session. Afterwards the addresses are inaccessible.
  ~Client();

  const Properties& properties() const { return properties_; }
  // Null for a place without a fixed address, unless its chunk is in use.
  char* address(PlaceId place) const { return space_->address(place); }

  // Chunks, leases and steps. REQUIRES: CheckProcess() is OK.
  LeaseClient* leases() const { return leases_.get(); }
  // FAILED_PRECONDITION: this process is a forked child, which has no leases.
  absl::Status CheckProcess() const;

  // As AddressSpace::CoverStreams and CoverAllStreams. FAILED_PRECONDITION: needs_streams is false.
  absl::Status CoverStreams(absl::Span<const uint64_t> streams);
  absl::Status CoverAllStreams();
  // Acquires the places; the returned object releases them.
  absl::StatusOr<class Use> Use(std::vector<PlaceId> places, Access access,
                                absl::optional<Duration> deadline = absl::nullopt);

  absl::StatusOr<void*> Wrap(const Span& span) const;
  size_t TakeReturned(Span* spans, size_t capacity) ABSL_LOCKS_EXCLUDED(spans_mutex_);

 private:
  Client();
  absl::Status Start(std::unique_ptr<DaemonSession> session, const Options& options);
  // Sets *host_space to the space if its page faults need handling; else leaves it.
  static absl::StatusOr<std::unique_ptr<AddressSpace>> ReserveSpace(
      const Job& job, const AddressSpace::Options& options, HostSpace** host_space);
  absl::Status StartFaultHandling(HostSpace* space);
  absl::Status CheckStreams() const;
  // Leaks all members, in a forked child.
  void Abandon();

  const uint64_t generation_;
  Properties properties_;
  const DlpackSpans spans_;
  // A span whose tensor was deleted, and the fence of the work that may still use it.
  struct ReturnedSpan {
    Span span;
    uint64_t fence = 0;
  };
  Mutex spans_mutex_;
  std::deque<ReturnedSpan> returned_spans_ ABSL_GUARDED_BY(spans_mutex_);
  std::unique_ptr<RegionTable> regions_;
  std::unique_ptr<SessionEvents> events_;
  std::unique_ptr<DaemonSession> session_;
  std::unique_ptr<AddressSpace> space_;
  std::unique_ptr<LeaseClient> leases_;
  std::unique_ptr<FaultLoop> faults_;
  absl::optional<SegvRegistration> segv_registration_;
  std::thread reclaimer_, ahead_;
};

// Returns $MEMTIDE_SOCKET_DIR if it is set; otherwise /run/memtide if this process is root's or
// that directory exists; otherwise $XDG_RUNTIME_DIR/memtide.
std::string DefaultSocketDir();

}  // namespace memtide::client

#endif  // MEMTIDE_CLIENT_CLIENT_H_
