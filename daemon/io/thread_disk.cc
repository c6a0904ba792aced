#include "daemon/io/thread_disk.h"

#include <pthread.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"

namespace memtide {
namespace {

// Bytes moved, or a negative errno. The calling thread owns the piece until Advance.
ssize_t Move(const Piece& piece) {
  const bool read = piece.transfer().request.direction == DiskTransfer::Direction::kRead;
  const size_t size = piece.size.count();
  const auto offset = static_cast<off_t>(piece.file_offset.count());
  const ssize_t result = read ? pread(piece.fd, piece.memory, size, offset)
                              : pwrite(piece.fd, piece.memory, size, offset);
  return result < 0 ? -errno : result;
}

}  // namespace

ThreadDisk::ThreadDisk(std::shared_ptr<StoreTable> stores, const IoSchedulerOptions& options,
                       std::string why)
    : StoredDisk(std::move(stores)), why_(std::move(why)), scheduler_(stores_, options) {
  const size_t lanes = 2 * stores_->drive_count();
  // There is one thread for each full-size piece in flight, because pread and pwrite block.
  const size_t threads = lanes * (options.in_flight / options.piece);
  for (size_t i = 0; i < threads; ++i) {
    threads_.emplace_back([this] { Work(); });
    pthread_setname_np(threads_.back().native_handle(), "memtide-disk");
  }
}

ThreadDisk::~ThreadDisk() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
    changed_.SignalAll();
  }
  for (std::thread& thread : threads_) thread.join();
}

std::string ThreadDisk::Describe() const {
  return absl::StrCat("threads (", why_, "), ", stores_->Describe());
}

void ThreadDisk::Expedite(TransferId transfer) {
  MutexLock lock(&mutex_);
  scheduler_.Expedite(transfer);
}

void ThreadDisk::Start(const DiskTransfer& transfer, Done done) {
  Transfer started;
  started.request = transfer;
  started.done = std::move(done);
  started.store = stores_->Find(transfer.store);
  MutexLock lock(&mutex_);
  // All threads are woken below, because one transfer may have a piece for each of them.
  scheduler_.Add(std::move(started));
  changed_.SignalAll();
}

Piece* ThreadDisk::AwaitPiece() {
  while (true) {
    if (Piece* piece = scheduler_.Next()) return piece;
    if (stopping_ && scheduler_.idle()) return nullptr;
    changed_.Wait(&mutex_);
  }
}

void ThreadDisk::Work() {
  Piece* piece = nullptr;
  while (true) {
    if (piece == nullptr) {
      MutexLock lock(&mutex_);
      piece = AwaitPiece();
    }
    if (piece == nullptr) return;
    // A piece of which some is left stays with this thread.
    const ssize_t result = Move(*piece);
    absl::optional<Completion> ended;
    {
      MutexLock lock(&mutex_);
      if (scheduler_.Advance(piece, result, &ended) == IoScheduler::Outcome::kEnded) {
        piece = nullptr;
      }
      // Wakes the other threads: the lane has room again, or the disk is closing.
      if (piece == nullptr) changed_.SignalAll();
    }
    // `done` posts to the loop, which may call Start in this thread (decision 5), so it needs the
    // lock to be free.
    if (ended.has_value()) ended->done(std::move(ended->status));
  }
}

}  // namespace memtide
