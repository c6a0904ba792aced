// The calls of a session, a row for each. Code that differs between calls in names only is made of
// these rows: the daemon's conversions and handlers (daemon/service), and the client's calls
// (client/rpc). A row's names:
//
//   Method  of its service in memtide/v1, whose messages are MethodRequest and MethodResponse
//   Event   which the daemon makes of a request (daemon/engine/interface/events.h); its Cost() is
//           charged to the user
//   Reply   of the engine (daemon/engine/interface/effects.h); Nothing: it has no values
//
// A request that has a request_id has one effect, however often it is sent with the same id. Others
// may be sent again: they have no effect the second time, or none that anybody sees.
#ifndef MEMTIDE_PROTO_VERBS_H_
#define MEMTIDE_PROTO_VERBS_H_

#define MEMTIDE_SESSION_VERBS(ROW)     \
  ROW(Open, OpenCall, OpenReply)       \
  ROW(Renew, RenewCall, Nothing)       \
  ROW(Close, CloseCall, Nothing)       \
  ROW(Resize, ResizeCall, ResizeReply) \
  ROW(ReturnRegions, ReturnRegionsCall, Nothing)

#define MEMTIDE_CHUNK_VERBS(ROW)               \
  ROW(Allocate, AllocateCall, AllocateReply)   \
  ROW(Fetch, FetchCall, FetchReply)            \
  ROW(Release, ReleaseCall, Nothing)           \
  ROW(Evict, EvictCall, Nothing)               \
  ROW(Free, FreeCall, Nothing)                 \
  ROW(Discard, DiscardCall, Nothing)           \
  ROW(Offer, OfferCall, OfferReply)            \
  ROW(Duplicate, DuplicateCall, AllocateReply) \
  ROW(Describe, DescribeCall, DescribeReply)   \
  ROW(Report, ReportCall, ReportReply)

#define MEMTIDE_OPTIMIZER_VERBS(ROW)  \
  ROW(StartPart, StepCall, PartReply) \
  ROW(EndPart, EndPartCall, Nothing)  \
  ROW(Commit, CommitCall, Nothing)

#define MEMTIDE_VERBS(ROW) \
  MEMTIDE_SESSION_VERBS(ROW) MEMTIDE_CHUNK_VERBS(ROW) MEMTIDE_OPTIMIZER_VERBS(ROW)

#endif  // MEMTIDE_PROTO_VERBS_H_
