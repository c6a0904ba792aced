// One entry of the journal (docs/formats/journal.md): a record as a protobuf message.
#ifndef MEMTIDE_DAEMON_RECOVERY_JOURNAL_ENTRY_H_
#define MEMTIDE_DAEMON_RECOVERY_JOURNAL_ENTRY_H_

#include "daemon/engine/interface/effects.h"
#include "journal.pb.h"

namespace memtide {

journal::Entry EncodeEntry(const Record& record);
// Adds what the entry says to `record`. False if a field has a value that no daemon writes.
bool DecodeEntry(const journal::Entry& entry, Record* record);

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_RECOVERY_JOURNAL_ENTRY_H_
