/* memtide: the C interface of the client library (libmemtide.so). The only exported symbols.
 *
 * A client is one session with the node's daemon and one fixed range of addresses, cut into places
 * of one chunk each. Allocating binds chunks to places; a chunk's address never changes, wherever
 * its bytes are. Acquiring a chunk leases it and maps its bytes at its address; releasing makes the
 * lease idle, and an idle lease is kept (and costs nothing to acquire again) until room is needed,
 * when it is unmapped and given back in the background, oldest first.
 *
 * A touch of an allocated chunk that is not mapped is caught (userfaultfd) and becomes a lease; a
 * write to a chunk leased for reading is caught (SIGSEGV handler, chained) and upgrades the lease.
 * So acquiring is never needed for correctness; it makes access fast and keeps the chunk from
 * being given back while it is used.
 *
 * Threads: every function may be called from any thread. A forked child has no access: the range
 * is not inherited, and calls there return MEMTIDE_FAILED_PRECONDITION.
 * Errors: functions return a status code, the numbers of gRPC. memtide_last_error() is the calling
 * thread's message for its last failed call: what was asked, what the limit is, what to do.
 */
#ifndef MEMTIDE_CLIENT_MEMTIDE_H_
#define MEMTIDE_CLIENT_MEMTIDE_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MEMTIDE_API __attribute__((visibility("default")))

typedef struct memtide_client memtide_client;

/* status codes */
enum {
  MEMTIDE_OK = 0,
  MEMTIDE_INVALID_ARGUMENT = 3,
  MEMTIDE_DEADLINE_EXCEEDED = 4,
  MEMTIDE_NOT_FOUND = 5,
  MEMTIDE_PERMISSION_DENIED = 7,
  MEMTIDE_RESOURCE_EXHAUSTED = 8,
  MEMTIDE_FAILED_PRECONDITION = 9,
  MEMTIDE_ABORTED = 10,
  MEMTIDE_UNIMPLEMENTED = 12,
  MEMTIDE_INTERNAL = 13,
  MEMTIDE_UNAVAILABLE = 14,
  MEMTIDE_DATA_LOSS = 15,
  MEMTIDE_UNAUTHENTICATED = 16
};

/* access */
enum { MEMTIDE_READ = 1, MEMTIDE_WRITE = 2 };

/* how device memory is lent */
enum {
  MEMTIDE_SHARED_MEMORY = 1,   /* an emulated device's */
  MEMTIDE_CUDA_DESCRIPTOR = 2, /* a GPU's, mapped at the client's fixed addresses */
  MEMTIDE_CUDA_IPC = 3         /* a GPU's, at addresses that CUDA chooses: see memtide_address */
};

/* kinds of chunk */
enum {
  MEMTIDE_OTHER = 0,
  MEMTIDE_PARAMETER = 1,
  MEMTIDE_GRADIENT = 2,
  MEMTIDE_OPTIMIZER_STATE = 3,
  MEMTIDE_ACTIVATION = 4
};

typedef struct memtide_options {
  uint32_t struct_bytes;       /* sizeof(memtide_options), for growth */
  const char* socket_dir;      /* where the daemon's fd.sock is; NULL: the default */
  const char* job_name;        /* NULL or "": a job of this client alone */
  const char* program;         /* shown in listings; may be NULL */
  uint64_t chunk_bytes;        /* a multiple of 2 MiB; 0: device or host share / 24, 2 to 64 MiB */
  uint64_t device_share_bytes; /* 0: all that is free */
  uint64_t host_share_bytes;   /* 0: elastic, all that other jobs do not need */
  uint64_t ssd_share_bytes;    /* 0: elastic, too */
  uint64_t address_bytes;      /* addresses to reserve; 0: 1 TiB (costs no memory) */
  uint32_t device_memory;      /* of a GPU: how it is lent; 0: descriptors where the driver can */
  uint32_t time_to_live_s;     /* how long the job's chunks outlive its last session; 0: not */
} memtide_options;

typedef struct memtide_properties {
  uint32_t struct_bytes;
  uint32_t places; /* of the address range */
  void* base;      /* place i is at base + i * chunk_bytes; NULL with MEMTIDE_CUDA_IPC */
  uint64_t chunk_bytes;
  uint32_t device_slots; /* slots of the job at each tier; 0: no such tier */
  uint32_t host_slots;
  uint32_t ssd_slots;
  uint32_t max_chunks;
  uint32_t lease_budget;  /* most leases that the client holds before it gives the oldest back */
  uint32_t kernel_faults; /* 1: system calls may touch unmapped chunks; 0: they fail with EFAULT.
                             Either way, one that writes to a chunk held for reading does. */
  uint32_t touches; /* 1: a touch of an unmapped chunk becomes a lease; 0: it is fatal, so every
                       use must be acquired (memory of a GPU) */
  uint32_t device_memory; /* how the working tier's memory is lent */
  int32_t dl_device_type; /* of the addresses, as DLPack has it: 1 the CPU's, 2 a CUDA GPU's */
  int32_t dl_device_id;
} memtide_properties;

typedef struct memtide_stats {
  uint32_t struct_bytes;
  uint32_t chunks;      /* allocated */
  uint32_t leases_held; /* in use and idle */
  uint32_t leases_in_use;
  uint64_t acquires;         /* chunks asked for by memtide_acquire */
  uint64_t acquire_hits;     /* of them, answered without a call to the daemon */
  uint64_t faults;           /* touches that became leases */
  uint64_t upgrades;         /* writes that upgraded a read lease */
  uint64_t releases;         /* leases given back */
  uint64_t calls;            /* rpcs */
  uint64_t wait_nanoseconds; /* that acquires and faults waited for the daemon */
  uint32_t lease_budget;     /* as in memtide_properties, now: after a resize, or less while the
                                machine is short of memory */
} memtide_stats;

/* Connects, opens a job, reserves addresses. *client is NULL on failure.
 * UNAVAILABLE: no daemon at socket_dir. */
MEMTIDE_API int memtide_open(const memtide_options* options, memtide_client** client);
/* Unmaps everything and ends the session: tensors over the range must be gone. NULL is allowed. */
MEMTIDE_API void memtide_close(memtide_client* client);

MEMTIDE_API int memtide_get_properties(memtide_client* client, memtide_properties* properties);

/* Binds `count` new chunks to consecutive places; *first_place is the first. They hold nothing, and
 * read as zeros. */
MEMTIDE_API int memtide_allocate(memtide_client* client, int kind, uint32_t count,
                                 uint32_t* first_place);
/* The same for who writes them first: until then they read as anything that the job has held, and
 * the first lease of each need not wait for zeros (4 MiB: 0.5 ms). */
MEMTIDE_API int memtide_allocate_undefined(memtide_client* client, int kind, uint32_t count,
                                           uint32_t* first_place);
/* Ends the chunks at these places; the addresses become inaccessible and may be used again.
 * FAILED_PRECONDITION when one is in use (acquired). */
MEMTIDE_API int memtide_free(memtide_client* client, uint32_t first_place, uint32_t count);

/* Leases and maps the chunks at `places` (any order, no duplicates), all or none, and counts one
 * use on each. timeout_ms: -1 waits as long as the daemon allows; 0 takes only what needs no wait
 * (UNAVAILABLE otherwise). RESOURCE_EXHAUSTED: more chunks than can be in use at once. */
MEMTIDE_API int memtide_acquire(memtide_client* client, const uint32_t* places, size_t count,
                                int access, int timeout_ms);
/* Takes one use off each. Never blocks. FAILED_PRECONDITION when one is not in use. An error of
 * CUDA is reported, and the uses have ended all the same. */
MEMTIDE_API int memtide_release(memtide_client* client, const uint32_t* places, size_t count);

/* --- What comes when: hints from which the daemon foresees; a wrong one costs only time --- */

#define MEMTIDE_FORWARD 1
#define MEMTIDE_BACKWARD 2
#define MEMTIDE_STEP 3
/* A moment begins: a module's pass, a piece of an optimizer's step. Chunks acquired or touched from
 * now on are used in it. `name`: at most 64 bytes of it are kept. own_*: bytes that the process
 * needs beside chunks at this moment. Told with the next fetch; after many moments without one, in
 * a call of its own, which waits for nothing but its answer. */
MEMTIDE_API int memtide_moment(memtide_client* client, int phase, const char* name,
                               uint64_t own_device_bytes, uint64_t own_host_bytes);
/* An iteration ends. Its moments, and what was used in them, are expected again, in the same order.
 * A program whose iterations have no parts needs no moments: this alone says enough. Without
 * either, whatever was used longest ago makes room. */
MEMTIDE_API int memtide_end_iteration(memtide_client* client);

/* Starts to bring chunks close. Never blocks; a hint. */
MEMTIDE_API int memtide_prefetch(memtide_client* client, const uint32_t* places, size_t count);
/* Gives idle leases on these back and moves the chunks to SSD (or host, where there is none).
 * Chunks in use are skipped. */
MEMTIDE_API int memtide_evict(memtide_client* client, const uint32_t* places, size_t count);
/* Gives all idle leases back. */
MEMTIDE_API int memtide_flush(memtide_client* client);

/* Changes the job's share of the device pool, for a program that needs more or less of a GPU for
 * itself. Shrinking gives chunks' memory back to the GPU: when this returns, it is free.
 * timeout_ms: as for memtide_acquire, but not 0. FAILED_PRECONDITION: not MEMTIDE_CUDA_DESCRIPTOR.
 * DEADLINE_EXCEEDED: leases in use, here or in another session of the job, kept it; it goes on. */
MEMTIDE_API int memtide_resize(memtide_client* client, uint64_t device_share_bytes, int timeout_ms);

/* --- Optimizer steps by the daemon ---
 *
 * A step is made of parts. A part reads chunks (gradients, parameters, states) and writes others,
 * allocated like any: nothing that is the only good copy is overwritten. memtide_publish then gives
 * each chunk what the other one holds, all at once: until then the step has no effect, and whatever
 * dies, the job is at this step or the one before. The same part again gives the same bits.
 * proto/memtide/v1/optimizer.proto says more. */

/* formats of elements; FLOAT16: of gradients and of rounded parameters only */
enum { MEMTIDE_FLOAT32 = 1, MEMTIDE_BFLOAT16 = 2, MEMTIDE_FLOAT16 = 3 };
/* rules: torch.optim's of the same name; Lion: arXiv 2302.06675 */
enum {
  MEMTIDE_ADAM = 1,
  MEMTIDE_ADAMW = 2,
  MEMTIDE_SGD = 3,
  MEMTIDE_ADAGRAD = 4,
  MEMTIDE_LION = 5
};

typedef struct memtide_step_options {
  uint32_t struct_bytes;
  uint32_t rule;
  uint64_t step; /* of these elements, from 1 on */
  double lr, weight_decay, beta1, beta2, eps, momentum, dampening, lr_decay;
  double gradient_factor; /* gradients are multiplied by it first; 0: as they are */
  uint32_t amsgrad, maximize, nesterov;
  uint32_t fresh_states; /* 1: old states are not read but are as before the first step */
  uint32_t parameter_format, gradient_format, state_format;
  /* Where to write how many gradients are infinite or NaN; NULL: they are not counted, which saves
   * a pass over them. The part is made all the same. */
  uint64_t* non_finite_gradients;
  uint32_t rounded_format; /* of new_rounded: bf16 (0, too) or fp16 */
  /* Not 0: bf16 parameters are rounded up or down by chance, decided by this, the step and the
   * element's number: made again, the same. */
  uint64_t rounding_seed;
} memtide_step_options;

/* Elements of one parameter. Addresses in the range; each span lies within one chunk. */
typedef struct memtide_step_piece {
  uint64_t elements;
  uint64_t gradient, parameter, new_parameter;
  /* Adam: exp_avg, exp_avg_sq and, with amsgrad, max_exp_avg_sq; SGD with momentum:
   * momentum_buffer; Adagrad: sum; Lion: exp_avg. Others: 0. With fresh_states, state is not
   * looked at. */
  uint64_t state[3], new_state[3];
  uint64_t new_rounded;   /* the new parameter, rounded; `parameter` is fp32 then. 0: nowhere */
  uint64_t first_element; /* its number among all of the optimizer; for rounding by chance */
} memtide_step_piece;

/* Bytes that stay as they are. */
typedef struct memtide_copy_piece {
  uint64_t from, to, bytes;
} memtide_copy_piece;

/* Computes a part of a step, and returns when the new content is there. Call it from several
 * threads to have several in flight: reading, arithmetic and writing overlap. What is named by
 * `new_*` and `to` is written: bytes of such a chunk that no piece and no copy covers, in any part
 * of the step, are undefined. Idle leases on the chunks are given back first; those in use are
 * waited for. Without pieces, options may be NULL.
 * INVALID_ARGUMENT: options that torch refuses or that are not finite, spans that cross chunks or
 * overlap; nothing was written. RESOURCE_EXHAUSTED: more chunks than the job's host share can hold
 * at once. At most 8192 pieces and copies together, on at most 4096 chunks. */
MEMTIDE_API int memtide_step(memtide_client* client, const memtide_step_options* options,
                             const memtide_step_piece* pieces, size_t piece_count,
                             const memtide_copy_piece* copies, size_t copy_count);
/* The job's step number `step` is whole: each of `places` holds from now on what the one of
 * `fresh_places` in its place held, all at once. keep 0: those then hold nothing; 1: they hold the
 * old content. `step`: the job's last one plus 1; the last one again has no effect; others:
 * FAILED_PRECONDITION. `note`: at most 512 KiB, kept with the step for memtide_published. At most
 * 4096 places. ABORTED: one of the chunks stayed in use. */
MEMTIDE_API int memtide_publish(memtide_client* client, uint64_t step, const uint32_t* places,
                                const uint32_t* fresh_places, size_t count, int keep,
                                const void* note, size_t note_bytes);
/* The job's last published step, 0 if there is none, and its note, as of memtide_open or of this
 * client's last memtide_publish. *note is freed with memtide_free_text. */
MEMTIDE_API int memtide_published(memtide_client* client, uint64_t* step, char** note,
                                  size_t* note_bytes);
/* The names of the chunks at places[0..count), and how often each has been opened for writing by
 * anybody, or published: what is the same as before holds the same bytes. NOT_FOUND: a place holds
 * no chunk. */
MEMTIDE_API int memtide_versions(memtide_client* client, const uint32_t* places, size_t count,
                                 uint64_t* ids, uint64_t* versions);
/* The names of the chunks at these places: they hold as long as the job. */
MEMTIDE_API int memtide_chunk_ids(memtide_client* client, uint32_t first_place, uint32_t count,
                                  uint64_t* ids);
/* Binds chunks that the job has, by name, to consecutive places: those of a session that ended, or
 * another one's. NOT_FOUND comes when they are first used. */
MEMTIDE_API int memtide_attach(memtide_client* client, const uint64_t* ids, uint32_t count,
                               uint32_t* first_place);

/* Where the chunk at `place` is. With MEMTIDE_CUDA_IPC it has an address only while it is acquired,
 * another one each time: NULL otherwise. */
MEMTIDE_API int memtide_address(memtide_client* client, uint32_t place, void** address);

/* Bytes [address, address + bytes) of the range as a DLManagedTensor (DLPack's struct without a
 * version: one dimension of uint8), for libraries that make tensors of such. Calling its deleter
 * returns the span, from any thread, and also after memtide_close. */
MEMTIDE_API int memtide_wrap(memtide_client* client, uint64_t address, uint64_t bytes,
                             void** dl_managed_tensor);
typedef struct memtide_span {
  uint64_t address;
  uint64_t bytes;
} memtide_span;
/* Up to `capacity` spans that were returned since, oldest first; *count of them. On a GPU, only
 * those whose last owner's work is done: others come later. */
MEMTIDE_API int memtide_take_returned(memtide_client* client, memtide_span* spans, size_t capacity,
                                      size_t* count);

MEMTIDE_API int memtide_get_stats(memtide_client* client, memtide_stats* stats);

/* The node's InspectNodeResponse (proto/memtide/v1/admin.proto) as JSON, proto field names kept.
 * Needs no client: works on any running daemon. *json is freed with memtide_free_text. */
MEMTIDE_API int memtide_inspect_node(const char* socket_dir, int with_sessions, uint32_t max_chunks,
                                     char** json);
/* What a job used and what the daemon did about it: a serialized Trace
 * (proto/memtide/v1/trace.proto) of *bytes bytes. job_id 0: the only job that is open. Needs no
 * client. *trace is freed with memtide_free_text. */
MEMTIDE_API int memtide_get_trace(const char* socket_dir, uint64_t job_id, char** trace,
                                  size_t* bytes);
/* A serialized Trace as JSON, proto field names kept. *json is freed with memtide_free_text.
 * INVALID_ARGUMENT: it is none. */
MEMTIDE_API int memtide_read_trace(const char* trace, size_t bytes, char** json);
MEMTIDE_API void memtide_free_text(char* text);

/* Puts the SIGSEGV handler back, should other code (Python's faulthandler) have taken its place. */
MEMTIDE_API int memtide_reinstall_handlers(void);

MEMTIDE_API const char* memtide_last_error(void);
MEMTIDE_API const char* memtide_version(void); /* "0.1.0" */

#ifdef __cplusplus
}
#endif

#endif /* MEMTIDE_CLIENT_MEMTIDE_H_ */
