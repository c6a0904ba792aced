#include "daemon/io/io_scheduler.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "daemon/io/io_error.h"

namespace memtide {
namespace {

// Consecutive attempts that move no byte before a piece fails: a kernel that is short of memory
// returns EAGAIN for a moment, not for ever.
constexpr int kMaxAttempts = 1000;

// Whether a cursor is of this transfer.
auto IsOf(std::list<Transfer>::iterator transfer) {
  return [transfer](const auto& cursor) { return cursor.transfer == transfer; };
}

}  // namespace

IoScheduler::IoScheduler(std::shared_ptr<const StoreTable> stores,
                         const IoSchedulerOptions& options)
    : stores_(std::move(stores)), options_(options) {
  MEMTIDE_CHECK(options.piece <= kStripeSize && options.small_piece <= options.piece);
  MEMTIDE_CHECK(!options.small_piece.IsZero() && options.piece.IsMultipleOf(kDiskAlignment) &&
                options.small_piece.IsMultipleOf(kDiskAlignment));
  // A full lane refills at half (decision 7), so half of it must hold a piece.
  MEMTIDE_CHECK(options.in_flight >= options.piece * 2);
  lanes_.resize(2 * stores_->drive_count());
  // The pool cannot run dry before the lanes are full: Cut charges each piece at least small_piece.
  pieces_.resize(lanes_.size() * (options.in_flight / options.small_piece));
  for (Piece& piece : pieces_) free_pieces_.push_back(&piece);
}

IoScheduler::Lane& IoScheduler::LaneOf(const Cursor& cursor) {
  const bool write = cursor.transfer->request.direction == DiskTransfer::Direction::kWrite;
  return lanes_[2 * stores_->drives()[cursor.directory] + (write ? 1 : 0)];
}

void IoScheduler::Add(Transfer transfer) {
  const DiskTransfer& request = transfer.request;
  const absl::optional<Bytes> end = CheckedAdd(request.offset, request.size);
  MEMTIDE_CHECK(end.has_value() && *end <= transfer.store->size && !request.size.IsZero())
      << request.size << " at " << request.offset << " of store " << request.store << " of "
      << transfer.store->size;
  MEMTIDE_CHECK(request.offset.IsMultipleOf(kDiskAlignment) &&
                request.size.IsMultipleOf(kDiskAlignment) &&
                Bytes(reinterpret_cast<uintptr_t>(request.memory)).IsMultipleOf(kDiskAlignment))
      << request.size << " at " << request.offset << " of store " << request.store;

  const auto place = transfers_.insert(transfers_.end(), std::move(transfer));
  const Stripes& stripes = *place->store->stripes;
  // Each directory gets a cursor of its own, so that all drives work on one transfer at once.
  for (size_t directory = 0; directory < stripes.directories(); ++directory) {
    if (stripes.counts()[directory] == 0) continue;
    const Cursor cursor{place, directory, stripes.FirstIn(directory, place->request.offset)};
    if (cursor.next >= *end) continue;
    Lane& lane = LaneOf(cursor);
    (place->request.awaited ? lane.awaited : lane.others).Push(place->request.job, cursor);
    ++place->cursors;
  }
}

void IoScheduler::Expedite(TransferId id) {
  for (auto transfer = transfers_.begin(); transfer != transfers_.end(); ++transfer) {
    DiskTransfer& request = transfer->request;
    if (request.id != id || request.awaited) continue;
    request.awaited = true;
    for (Lane& lane : lanes_) {
      for (const Cursor& cursor : lane.others.Take(request.job, IsOf(transfer))) {
        lane.awaited.Push(request.job, cursor);
      }
    }
  }
}

Piece* IoScheduler::Next() {
  for (size_t i = 0; i < lanes_.size(); ++i) {
    // Beginning behind the last lane that was served keeps a busy lane from starving the others.
    const size_t lane = (next_lane_ + i) % lanes_.size();
    if (Piece* piece = Cut(lane)) {
      next_lane_ = (lane + 1) % lanes_.size();
      return piece;
    }
  }
  return nullptr;
}

Piece* IoScheduler::Cut(size_t index) {
  Lane& lane = lanes_[index];
  const size_t waiting = lane.awaited.size() + lane.others.size();
  if (waiting == 0 || lane.full || free_pieces_.empty()) return nullptr;
  FairQueue<Cursor>& queue = lane.awaited.size() > 0 ? lane.awaited : lane.others;
  Cursor& cursor = queue.First();
  const Stripes& stripes = *cursor.transfer->store->stripes;
  const DiskTransfer& request = cursor.transfer->request;
  const Bytes end = request.offset + request.size;
  // Alone, a small transfer keeps the disk busy only in small pieces.
  const bool alone = waiting == 1;
  const bool small = request.size < options_.piece;
  const Bytes limit = alone && small ? options_.small_piece : options_.piece;
  const Bytes stripe_end = stripes.EndOfStripe(cursor.next);
  const Bytes size = std::min({limit, stripe_end - cursor.next, end - cursor.next});
  // A piece takes room of at least small_piece, so that the pool bounds the number of pieces.
  const Bytes charge = std::max(size, options_.small_piece);
  if (lane.in_flight + charge > options_.in_flight) {
    // Nothing more starts until half has arrived: requests that are started together cost less
    // (decision 7).
    lane.full = true;
    return nullptr;
  }

  Piece* const piece = free_pieces_.back();
  free_pieces_.pop_back();
  piece->place = cursor.transfer;
  piece->lane = index;
  piece->lane_charge = charge;
  piece->directory = cursor.directory;
  piece->fd = cursor.transfer->store->files[cursor.directory].get();
  piece->file_offset = stripes.FileOffset(cursor.next);
  piece->memory = request.memory + (cursor.next - request.offset).count();
  piece->size = size;
  piece->attempts = 0;
  lane.in_flight += charge;
  ++cursor.transfer->pieces;

  cursor.next += size;
  queue.Charge(size);
  // The stripes in between lie in other directories, which have cursors of their own.
  if (cursor.next == stripe_end) cursor.next = stripes.FirstIn(cursor.directory, cursor.next);
  if (cursor.next >= end) {
    --cursor.transfer->cursors;
    queue.Pop();
  }
  return piece;
}

IoScheduler::Outcome IoScheduler::Advance(Piece* piece, ssize_t result,
                                          absl::optional<Completion>* completion) {
  // Direct I/O can only resume at an aligned offset, so the bytes after the last one move again.
  const Bytes moved = RoundDown(Bytes(std::max<ssize_t>(result, 0)), kDiskAlignment);
  const bool again = result > 0 || result == -EAGAIN || result == -EINTR;
  if (moved < piece->size && again) {
    piece->file_offset += moved;
    piece->memory += moved.count();
    piece->size -= moved;
    piece->attempts = moved.IsZero() ? piece->attempts + 1 : 0;
    if (piece->attempts < kMaxAttempts) return Outcome::kResubmit;
  }
  if (moved < piece->size) {
    const auto transfer = piece->place;
    // The first error stays: later pieces tend to fail of the same cause.
    if (transfer->status.ok()) transfer->status = Error(*piece, static_cast<int>(-result));
    // Pieces in flight still use the memory, so the transfer ends with the last of them.
    Abandon(transfer);
  }
  End(piece, completion);
  return Outcome::kEnded;
}

absl::Status IoScheduler::Error(const Piece& piece, int error) const {
  const DiskTransfer& request = piece.transfer().request;
  const bool read = request.direction == DiskTransfer::Direction::kRead;
  const std::string what =
      absl::StrCat(read ? "reading " : "writing ", FormatBytes(piece.size), " at offset ",
                   piece.file_offset.count(), " of store ", request.store.value(), " in ",
                   stores_->directories()[piece.directory].path());
  if (error > 0) return read ? ReadError(error, what) : WriteError(error, what);
  // A result of 0: the file is shorter than it was made, or the device accepts nothing.
  if (read) return absl::DataLossError(absl::StrCat(what, ": the file ends there"));
  return absl::InternalError(absl::StrCat(what, ": nothing was written"));
}

void IoScheduler::Abandon(std::list<Transfer>::iterator transfer) {
  for (Lane& lane : lanes_) {
    lane.awaited.Take(transfer->request.job, IsOf(transfer));
    lane.others.Take(transfer->request.job, IsOf(transfer));
  }
  transfer->cursors = 0;
}

void IoScheduler::End(Piece* piece, absl::optional<Completion>* completion) {
  const auto transfer = piece->place;
  Lane& lane = lanes_[piece->lane];
  lane.in_flight -= piece->lane_charge;
  if (lane.in_flight * 2 <= options_.in_flight) lane.full = false;
  free_pieces_.push_back(piece);
  --transfer->pieces;
  if (transfer->pieces > 0 || transfer->cursors > 0) return;
  *completion = Completion{std::move(transfer->done), std::move(transfer->status)};
  transfers_.erase(transfer);  // Before `done` is called: it may be followed by DropStore.
}

}  // namespace memtide
