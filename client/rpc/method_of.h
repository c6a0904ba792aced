// MethodOf<Request>: the gRPC method that takes a Request, for each call that this library makes.
#ifndef MEMTIDE_CLIENT_RPC_METHOD_OF_H_
#define MEMTIDE_CLIENT_RPC_METHOD_OF_H_

#include "memtide/v1/admin.grpc.pb.h"
#include "memtide/v1/chunks.grpc.pb.h"
#include "memtide/v1/optimizer.grpc.pb.h"
#include "memtide/v1/session.grpc.pb.h"
#include "proto/verbs.h"

namespace memtide::client {

template <typename Request>
struct MethodOf;

#define MEMTIDE_METHOD_OF(Service, Method)         \
  template <>                                      \
  struct MethodOf<v1::Method##Request> {           \
    using Stub = v1::Service::Stub;                \
    using Response = v1::Method##Response;         \
    static constexpr auto kMethod = &Stub::Method; \
  };
#define MEMTIDE_SESSION_METHOD_OF(Method, Event, Reply) MEMTIDE_METHOD_OF(SessionService, Method)
#define MEMTIDE_CHUNK_METHOD_OF(Method, Event, Reply) MEMTIDE_METHOD_OF(ChunkService, Method)
#define MEMTIDE_OPTIMIZER_METHOD_OF(Method, Event, Reply) \
  MEMTIDE_METHOD_OF(OptimizerService, Method)
MEMTIDE_SESSION_VERBS(MEMTIDE_SESSION_METHOD_OF)
MEMTIDE_CHUNK_VERBS(MEMTIDE_CHUNK_METHOD_OF)
MEMTIDE_OPTIMIZER_VERBS(MEMTIDE_OPTIMIZER_METHOD_OF)
MEMTIDE_METHOD_OF(AdminService, InspectNode)
#undef MEMTIDE_SESSION_METHOD_OF
#undef MEMTIDE_CHUNK_METHOD_OF
#undef MEMTIDE_OPTIMIZER_METHOD_OF
#undef MEMTIDE_METHOD_OF

}  // namespace memtide::client

#endif  // MEMTIDE_CLIENT_RPC_METHOD_OF_H_
