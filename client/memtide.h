/* memtide: the C interface of the client library, libmemtide.so, which exports nothing else.
 *
 * A client is one session with the node's daemon, and one fixed range of addresses that is cut into
 * places of one chunk each. memtide_allocate binds new chunks to places. A chunk's address never
 * changes, whichever tier (GPU, host memory or SSD) holds its bytes.
 *
 * memtide_acquire leases chunks from the daemon, maps their bytes at their places and counts a use;
 * memtide_release ends the use. A lease without a use is idle. Idle leases stay mapped, and cost
 * nothing to acquire again, until the client needs room for others or the daemon revokes them; a
 * background thread then unmaps them and gives them back.
 *
 * Page faults: on host memory an access to an allocated but unmapped chunk is caught (userfaultfd)
 * and becomes a lease; a write to a chunk that is leased for reading is caught (SIGSEGV; other
 * faults go to the handler that was installed before) and becomes a write lease. So a program need
 * not acquire anything to be correct. Acquiring makes access fast, and keeps a chunk from being
 * given back while it is used. A fault that cannot be handled ends the process with SIGBUS and a
 * message on stderr. GPU memory has no page faults (memtide_properties.handles_faults is 0): there
 * every use must be acquired.
 *
 * Units: sizes and addresses are bytes, names of fields say other units (_ms, _s, _nanoseconds).
 *
 * Ownership: strings and structs that a caller passes in are read during the call only. The caller
 * owns the client (memtide_close), texts (memtide_free_text) and DLPack tensors (their deleter).
 *
 * Thread safety: any function may be called from any thread, except that no call may run during or
 * after memtide_close of its client.
 *
 * Fork: a child inherits neither the addresses nor the session. Calls on an inherited client return
 * MEMTIDE_FAILED_PRECONDITION there; memtide_free and memtide_discard return MEMTIDE_OK and
 * memtide_close does nothing, so that destructors can run.
 *
 * Errors: functions return a status code; its numbers are those of gRPC. After a failure
 * memtide_last_error() returns the calling thread's message, which names the request, the limit and
 * a remedy. Any function may also return MEMTIDE_INVALID_ARGUMENT (a pointer is NULL, a number out
 * of range), MEMTIDE_RESOURCE_EXHAUSTED (this process is out of memory) and MEMTIDE_UNAVAILABLE
 * (the session is lost: the daemon ended, or ended the session). After a loss, chunks that are
 * mapped stay readable.
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

/* Status codes. */
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

/* The access that a lease permits. */
enum { MEMTIDE_READ = 1, MEMTIDE_WRITE = 2 };

/* How device memory is lent. */
enum {
  MEMTIDE_SHARED_MEMORY = 1,   /* shared host memory: an emulated device */
  MEMTIDE_CUDA_DESCRIPTOR = 2, /* GPU memory, mapped at the client's fixed addresses */
  MEMTIDE_CUDA_IPC = 3         /* GPU memory at addresses that CUDA chooses: see memtide_address */
};

/* The content of a chunk. For statistics, except that activations are transient: their chunks end
 * with the job's last session and with the daemon, and no later session of the job finds them. */
enum {
  MEMTIDE_OTHER = 0,
  MEMTIDE_PARAMETER = 1,
  MEMTIDE_GRADIENT = 2,
  MEMTIDE_OPTIMIZER_STATE = 3,
  MEMTIDE_ACTIVATION = 4
};

/* Structs begin with struct_bytes, which the caller sets to sizeof the struct: later versions
 * append fields, and both sides read and write only the fields that both know. */

typedef struct memtide_options {
  uint32_t struct_bytes;
  const char* socket_dir; /* directory of the daemon's fd.sock; NULL: the default */
  const char* job_name; /* sessions with the same name share a job; NULL or "": a job of its own */
  const char* program;  /* shown in listings; may be NULL */
  uint64_t chunk_bytes; /* a multiple of 2 MiB; 0: 1/24 of the host share, at most 1/12 of the
                           device share, 2 to 64 MiB, with a device 128 */
  uint64_t device_share_bytes; /* 0: all that is free, elastic if it is lent slot by slot */
  uint64_t host_share_bytes;   /* 0: elastic, all that other jobs do not need */
  uint64_t ssd_share_bytes;    /* 0: elastic, all that other jobs do not need */
  uint64_t address_bytes;      /* addresses to reserve, which costs no memory; 0: 1 TiB */
  uint32_t device_memory;  /* MEMTIDE_CUDA_DESCRIPTOR or _IPC; 0: descriptors if the driver can */
  uint32_t time_to_live_s; /* how long the chunks outlive the job's last session, which needs a
                           job_name; 0: not at all */
  uint32_t rank;  /* the number of this session among the ranks of one training, from 0 on */
  uint32_t ranks; /* how many they are, at most 4096: one session of job_name each. They make each
                     step part once (memtide_start_shared_part) and commit together. Each has its
                     own chunks, until it ends, or for its rank's next session; 0: none */
  const char* device; /* lends the device share: "1", a number on the node; "cuda:1", the GPU with
                         this number in this process; or "GPU-..." or "MIG-...", a whole uuid.
                         NULL or "": the one with most free memory */
  uint32_t durable_every; /* each step that is a multiple of it is on stable storage before its
                             commit returns, so that the job outlives the machine. Needs job_name,
                             time_to_live_s and an SSD pool. 0: none is */
  uint32_t alike;         /* how many sessions on the node train alike, this one included, and call
                             memtide_offer_when_written: each is guaranteed the less of host memory, so that
                             there is room for what they have in common. At most 4096; 0: 1 */
  const char* group;    /* the ranks of a training that have a job_name each, with a time_to_live_s,
                           as their chunks are leased at a device each: their commits with
                           MEMTIDE_WITH_ALL_RANKS are one. NULL or "": none */
  uint32_t group_rank;  /* the number of this session among them, from 0 on */
  uint32_t group_ranks; /* how many they are, at most 4096 */
} memtide_options;

typedef struct memtide_properties {
  uint32_t struct_bytes;
  uint32_t places;       /* number of places in the address range */
  void* base;            /* place i is at base + i * chunk_bytes; NULL with MEMTIDE_CUDA_IPC */
  uint64_t chunk_bytes;  /* size of every chunk of the job */
  uint32_t device_slots; /* chunks that the job's share of each tier holds; 0: no such tier */
  uint32_t host_slots;
  uint32_t ssd_slots;
  uint32_t max_chunks;     /* chunks that the job may allocate */
  uint32_t lease_budget;   /* leases that the client holds at most, unless all are in use */
  uint32_t kernel_faults;  /* 1: system calls may access unmapped chunks; 0: they fail with EFAULT.
                              In both cases one that writes to a chunk leased for reading fails. */
  uint32_t handles_faults; /* 1: an access to an unmapped chunk becomes a lease; 0: it is fatal, so
                              every use must be acquired (GPU memory) */
  uint32_t device_memory;  /* MEMTIDE_SHARED_MEMORY, _CUDA_DESCRIPTOR or _CUDA_IPC */
  int32_t dl_device_type;  /* DLPack's device of the addresses; 1: CPU, 2: CUDA, 12: other */
  int32_t dl_device_id;
  uint32_t needs_streams; /* 1: memtide_cover_streams makes waits for the GPU shorter */
  uint32_t device_number; /* of the device that lends the device slots, on its node */
  uint64_t job_id;        /* of the client's job, in memtide_inspect_node's listing */
  uint64_t session_id; /* of the client itself, there; 0: the daemon is older and does not say it */
} memtide_properties;

typedef struct memtide_stats {
  uint32_t struct_bytes;
  uint32_t chunks;           /* chunks bound to places now */
  uint32_t leases_held;      /* leases now, in use and idle */
  uint32_t leases_in_use;    /* leases with at least one use now */
  uint64_t acquires;         /* chunks requested by memtide_acquire */
  uint64_t acquire_hits;     /* those of them that were leased already */
  uint64_t faults;           /* page faults that became leases */
  uint64_t upgrades;         /* writes that turned a read lease into a write lease */
  uint64_t releases;         /* leases given back */
  uint64_t calls;            /* calls to the daemon */
  uint64_t wait_nanoseconds; /* time that acquires and page faults waited for the daemon */
  uint32_t lease_budget; /* the current one: it changes with the job's share, and shrinks while the
                            machine is short of memory */
  uint32_t slots;        /* chunks that fit into the job's share now, at the tier of the leases */
  uint64_t maps;         /* chunks that were mapped; a GPU's keep their mapping for a next lease */
  uint64_t call_nanoseconds;     /* the parts of wait_nanoseconds: until the daemon answered, */
  uint64_t map_nanoseconds;      /* while chunks were mapped, */
  uint64_t unmap_nanoseconds;    /* and others unmapped first, once a GPU had done with them */
  uint64_t protected_iterations; /* in which an access without a lease was fatal; see
                                    memtide_protect */
  uint64_t blocking_calls;       /* those of `calls` that the program's own threads made */
} memtide_stats;

/* Limits that the daemon enforces. The library cuts lists of chunks by itself, except for
 * memtide_start_part and memtide_commit. */
typedef struct memtide_limits {
  uint32_t struct_bytes;
  uint32_t chunks_per_call;     /* chunks of one part, places of one memtide_commit */
  uint32_t step_manifest_bytes; /* bytes of memtide_commit's manifest */
  uint32_t chunks_per_node;     /* chunks of all jobs of the node together */
  uint32_t max_wait_s;          /* how long the daemon waits at most in one call */
  uint32_t min_slots;           /* the fewest chunks with which Open and Resize accept a share */
} memtide_limits;

/* --- Sessions --- */

/* Connects to the daemon, opens or joins a job, and reserves addresses. *client is NULL on failure.
 * options may be NULL, which means all defaults. UNAVAILABLE: no daemon listens at socket_dir.
 * RESOURCE_EXHAUSTED: the node cannot grant the shares.
 * Side effect: the process's soft limit of open files (RLIMIT_NOFILE) becomes 6144, or the hard
 * limit if that is lower, because each region of GPU memory arrives as a descriptor, and a job may
 * have thousands. They get numbers from 1024 on, so select() still works with the program's own.
 * memtide_close does not lower the limit again. */
MEMTIDE_API int memtide_open(const memtide_options* options, memtide_client** client);
/* The chunk_bytes of a job with these shares whose options leave it 0. A share of 0 bytes: the job
 * has none of that kind. */
MEMTIDE_API int memtide_default_chunk_bytes(uint64_t device_share_bytes, uint64_t host_share_bytes,
                                            uint64_t* chunk_bytes);
/* Unmaps everything and ends the session. Afterwards the addresses are inaccessible, so no tensor
 * over the range may be used any more. NULL is allowed. */
MEMTIDE_API void memtide_close(memtide_client* client);

MEMTIDE_API int memtide_get_properties(memtide_client* client, memtide_properties* properties);
MEMTIDE_API int memtide_get_limits(memtide_client* client, memtide_limits* limits);
MEMTIDE_API int memtide_get_stats(memtide_client* client, memtide_stats* stats);

/* --- Chunks --- */

/* Binds `count` new chunks to consecutive places from *first_place on. They read as zeros.
 * RESOURCE_EXHAUSTED: more than max_chunks, or no such run of places is free. */
MEMTIDE_API int memtide_allocate(memtide_client* client, int kind, uint32_t count,
                                 uint32_t* first_place);
/* The same for chunks that the program writes before it reads them: until then they read as
 * arbitrary bytes of the same job. The first lease of each saves the time to zero it (0.5 ms for 4
 * MiB). */
MEMTIDE_API int memtide_allocate_undefined(memtide_client* client, int kind, uint32_t count,
                                           uint32_t* first_place);
/* The same for chunks that never leave memory for SSD: their home is host memory. For kind
 * MEMTIDE_ACTIVATION, where chunks are leased at a device; on a node without SSD, as
 * memtide_allocate_undefined. RESOURCE_EXHAUSTED: also if the other chunks of the job would have
 * too few slots of host memory. */
MEMTIDE_API int memtide_allocate_above_ssd(memtide_client* client, int kind, uint32_t count,
                                           uint32_t* first_place);
/* Ends the content of the chunks at these places, all or none, and keeps the chunks: nothing is
 * written back, and their memory is free at once. Until the next write they read as arbitrary bytes
 * of the same job. Their next uses stay predicted, so for content that each iteration makes anew
 * this is better than to free and to allocate. FAILED_PRECONDITION: a chunk is in use. With more
 * chunks than chunks_per_call, those before the call that fails are discarded. */
MEMTIDE_API int memtide_discard(memtide_client* client, const uint32_t* places, size_t count);
/* Offers chunks that the program will not write soon: what another session of the user has as well
 * is kept once, and shared[i] is 1, else 0. FAILED_PRECONDITION: the job has a name, or no host
 * memory. */
MEMTIDE_API int memtide_offer(memtide_client* client, const uint32_t* places, size_t count,
                              uint8_t* shared);
/* Offers chunks that the program writes, and other sessions of the user write in the same way, such
 * as the ranks of a data-parallel training. From now on, whenever such a chunk was written and is
 * in no use, what others have as well is kept once in host memory, without a further call. A later
 * write first gives the program a content of its own (RESOURCE_EXHAUSTED: there is no room for it).
 * FAILED_PRECONDITION: the job has a name, or no host memory, or is that of several ranks. */
MEMTIDE_API int memtide_offer_when_written(memtide_client* client, const uint32_t* places,
                                           size_t count);
/* Binds new chunks with the content of those at these places to consecutive places from
 * *first_place on: one for each, in their order, then the second one of each, up to `copies`. No
 * byte is copied: they hold it in common, in host memory, until one of them is written. Then that
 * one first gets a content of its own (RESOURCE_EXHAUSTED: there is no room for it). Each is freed
 * by itself. RESOURCE_EXHAUSTED: as memtide_allocate, or host memory has too little room.
 * FAILED_PRECONDITION: the job has a name, or no host memory, or a chunk holds nothing yet.
 * ABORTED: a chunk stays in use. */
MEMTIDE_API int memtide_duplicate(memtide_client* client, const uint32_t* places, size_t count,
                                  uint32_t copies, uint32_t* first_place);
/* Frees the chunks at these places. The addresses become inaccessible, and may be bound again.
 * FAILED_PRECONDITION: a chunk is in use. NOT_FOUND: a place holds no chunk. */
MEMTIDE_API int memtide_free(memtide_client* client, uint32_t first_place, uint32_t count);

/* Leases and maps the chunks at `places`, all or none, and counts one use of each. The order does
 * not matter; no place may be named twice. timeout_ms: -1 waits as long as the daemon allows; 0
 * takes only what needs no wait, and returns UNAVAILABLE otherwise. DEADLINE_EXCEEDED: the timeout
 * passed. RESOURCE_EXHAUSTED: more chunks than can be in use at once. DATA_LOSS: the bytes are
 * lost. */
MEMTIDE_API int memtide_acquire(memtide_client* client, const uint32_t* places, size_t count,
                                int access, int timeout_ms);
/* Ends one use of each place, or of none. Never blocks. On a GPU the program must have launched all
 * work on these chunks before; the library waits for that work before it unmaps them.
 * FAILED_PRECONDITION: a place is not in use. Errors of CUDA are returned although the uses have
 * ended. */
MEMTIDE_API int memtide_release(memtide_client* client, const uint32_t* places, size_t count);

/* NVIDIA drivers before 555 can say when the work of one stream is done, but not when that of all
 * streams is. With them the library waits for all work of the process before it unmaps a chunk.
 * memtide_cover_streams names CUstreams, which must exist until the process ends: from now on work
 * on chunks is launched on these and on those of earlier calls only, and no other work is waited
 * for, unless they are more than 32. memtide_cover_all_streams: any stream may be used from now on.
 * FAILED_PRECONDITION: needs_streams is 0. */
MEMTIDE_API int memtide_cover_streams(memtide_client* client, const uint64_t* streams,
                                      size_t count);
MEMTIDE_API int memtide_cover_all_streams(memtide_client* client);

/* Gives idle leases on these places back, moves the chunks to SSD (to host memory if there is no
 * SSD tier), and waits for that. Chunks in use are skipped. */
MEMTIDE_API int memtide_evict(memtide_client* client, const uint32_t* places, size_t count);
/* Gives all idle leases back. */
MEMTIDE_API int memtide_flush(memtide_client* client);

/* *address is that of the chunk at `place`. With MEMTIDE_CUDA_IPC a chunk has an address only while
 * it is acquired, a different one each time; otherwise *address is NULL. */
MEMTIDE_API int memtide_address(memtide_client* client, uint32_t place, void** address);

/* The job-wide ids of the chunks at `count` consecutive places. Ids stay valid as long as the job.
 * NOT_FOUND: a place holds no chunk. */
MEMTIDE_API int memtide_chunk_ids(memtide_client* client, uint32_t first_place, uint32_t count,
                                  uint64_t* ids);
/* Binds existing chunks of the job to consecutive places from *first_place on: chunks of another
 * session, or of one that ended. INVALID_ARGUMENT: this client has bound a chunk already. Ids are
 * not checked here: an unknown one is NOT_FOUND at its first use. */
MEMTIDE_API int memtide_attach(memtide_client* client, const uint64_t* ids, uint32_t count,
                               uint32_t* first_place);
/* The ids of the chunks at these places, and how many write leases and commits each has had in any
 * session. A chunk whose version is unchanged holds the same bytes. NOT_FOUND: a place holds no
 * chunk. */
MEMTIDE_API int memtide_versions(memtide_client* client, const uint32_t* places, size_t count,
                                 uint64_t* ids, uint64_t* versions);

/* Changes the job's share of the device pool, for a program that needs more or less GPU memory of
 * its own; an elastic share gets this limit. When a call that shrinks the share returns, the memory
 * is free for the GPU's other users. timeout_ms: -1 waits as long as the daemon allows; 0 is not
 * allowed. FAILED_PRECONDITION: device_memory is not MEMTIDE_CUDA_DESCRIPTOR. DEADLINE_EXCEEDED:
 * leases in use, in this or another session of the job, delay it; the share continues to shrink. */
MEMTIDE_API int memtide_resize(memtide_client* client, uint64_t device_share_bytes, int timeout_ms);

/* --- Hints for prediction: the daemon prefetches and evicts by them; a wrong one costs only time
 * --- */

#define MEMTIDE_FORWARD 1
#define MEMTIDE_BACKWARD 2
#define MEMTIDE_STEP 3
/* Begins a moment: one pass of a module, or one piece of an optimizer step. Chunks acquired or
 * faulted in from now on are used in it. phase: one of the above, or 0. name: the first 64 bytes
 * are recorded; may be NULL. own_*_bytes: memory that the process needs beside its chunks in this
 * moment. Moments are sent with the next fetch, or, after 16 without a fetch, by a thread of the
 * client's: no program thread waits for that. */
MEMTIDE_API int memtide_moment(memtide_client* client, int phase, const char* name,
                               uint64_t own_device_bytes, uint64_t own_host_bytes);
/* Ends an iteration. The daemon predicts that its moments, and their uses, recur in the same order.
 * A program whose iterations have no parts needs no moments: this call alone suffices. Without
 * both, the least recently used chunks are evicted. */
MEMTIDE_API int memtide_end_iteration(memtide_client* client);

/* The program does something that it has not done before: until two iterations have ended, chunks
 * are inaccessible without a lease. Otherwise those on a GPU keep their mappings, which costs the
 * driver nothing, but what uses a chunk without a lease then finds other bytes of the job instead
 * of a fault. So it is with the first two iterations; in later ones each chunk is inaccessible in
 * one of 64. With MEMTIDE_PROTECT=1 in the environment it is in all. */
MEMTIDE_API int memtide_protect(memtide_client* client);

/* --- Optimizer steps in parts ---
 *
 * A step consists of parts. A part reads chunks (gradients, parameters, states) and writes others,
 * called shadow chunks, which are allocated like any chunk; so the only valid copy of a value is
 * never overwritten. memtide_commit then gives each chunk the content of its shadow chunk, all at
 * once. Until then the step has no effect: whatever process dies, the job is at this step or at the
 * one before. Repeating a part gives the same bits. proto/memtide/v1/optimizer.proto has the
 * details. */

/* Begins one part of a step, which the program computes: its chunks are brought to host memory, and
 * stay there until memtide_end_part. The first `reads` of the `count` places are read; all bytes of
 * the others, which are shadow chunks, are written. Idle leases on them end, and leases in use are
 * waited for. addresses[i] becomes the address of the chunk at places[i]: one of ordinary memory,
 * which is not that of the place, and is valid until the part ends. *part is its number. Any thread
 * may compute and end the part; several parts may be in flight, so that reading, arithmetic and
 * writing overlap. RESOURCE_EXHAUSTED: more chunks than the job's host share can hold at once, or
 * no space for the shadow chunks. */
MEMTIDE_API int memtide_start_part(memtide_client* client, const uint32_t* places, size_t count,
                                   size_t reads, uint64_t* part, uint64_t* addresses);
/* A part's work and the bytes that it reads, as digests of 16 bytes; one of zeros is not given.
 * Parts of equal work on equal bytes must give equal bits. */
typedef struct memtide_part_contents {
  uint32_t struct_bytes;
  uint8_t work_digest[16]; /* required: of the operation with its options and step, and of where in
                              the chunks each of its operands is */
  const uint8_t* read_digests; /* by number of a place that is read, 16 bytes each: of the bytes
                                  that the part reads of its chunk; NULL: none is given */
} memtide_part_contents;

/* States of a part that was to begin: see memtide_shared_part. */
enum { MEMTIDE_COMPUTING = 1, MEMTIDE_MADE = 2, MEMTIDE_NEEDS_DIGESTS = 3 };
/* The answer about a part. The caller provides the arrays; indices are those of `places`. */
typedef struct memtide_shared_part {
  uint32_t struct_bytes;
  /* MEMTIDE_COMPUTING: this program computes the part, and ends it.
   * MEMTIDE_MADE: another rank has computed it: the written chunks have its results.
   * MEMTIDE_NEEDS_DIGESTS: the digests of the chunks at unknown_reads are needed first; the call is
   * to be repeated with them. In the last two cases no part has begun, so there is none to end. */
  uint32_t state;
  uint64_t part;             /* MEMTIDE_COMPUTING: its number for memtide_end_part; otherwise 0 */
  uint64_t* addresses;       /* array of `count`: written as by memtide_start_part, if COMPUTING */
  uint32_t* unknown_reads;   /* array of `reads`, of which unknown_count are written */
  uint32_t* different_reads; /* array of `reads`, of which different_count are written */
  uint32_t unknown_count;
  /* 1, beside COMPUTING: another rank writes the same chunks, and does not compute the same. */
  uint32_t has_difference;
  uint32_t different_rank;  /* the other rank */
  uint32_t different_work;  /* 1: its work_digest differs */
  uint32_t different_count; /* how many chunks that are read have other bytes there */
} memtide_shared_part;

/* As memtide_start_part, for one of several ranks (memtide_options.ranks): says what the part
 * computes, so that it is made once for all ranks that want the same. Waits while another rank
 * computes it. The daemon knows the contents that the ranks have made together, so it needs the
 * digests of other chunks only: a program may call without read_digests, and again with those that
 * are asked for. Ranks make the whole content of the written chunks once, so no other part of the
 * step may write one of them. After an error no part has begun, and the call may be repeated. */
MEMTIDE_API int memtide_start_shared_part(memtide_client* client, const uint32_t* places,
                                          size_t count, size_t reads,
                                          const memtide_part_contents* contents,
                                          memtide_shared_part* part);
/* Ends a part. computed: 1 if the new content is there; with 0 the written chunks hold nothing.
 * non_finite_gradients: for the daemon's counter, if the program has counted them. */
MEMTIDE_API int memtide_end_part(memtide_client* client, uint64_t part, int computed,
                                 uint64_t non_finite_gradients);
/* How to commit, as a sum. The shadow chunks get the previous content, instead of none. In a job of
 * ranks with a time_to_live_s: waits for such commits of all ranks, and is one with them. */
enum { MEMTIDE_KEEP_OLD_CONTENT = 1, MEMTIDE_WITH_ALL_RANKS = 2 };
/* Commits step number `step` of the job, or of this rank: each chunk at `places` gets the content
 * of the shadow chunk with the same index in shadow_places, all at once. `step` must follow the
 * last committed step; committing the last one again has no effect; any other is
 * FAILED_PRECONDITION. ids and versions: as memtide_versions gave them for `places`, to commit only
 * if no chunk was written since; both NULL: whatever was written. manifest: bytes that are stored
 * with the step and returned by memtide_committed. memtide_limits has the most bytes and places.
 * ABORTED: one of the chunks stays in use, or was written. With MEMTIDE_WITH_ALL_RANKS,
 * FAILED_PRECONDITION: a rank has ended; DEADLINE_EXCEEDED: some ranks have not committed. */
MEMTIDE_API int memtide_commit(memtide_client* client, uint64_t step, const uint32_t* places,
                               const uint32_t* shadow_places, size_t count, const uint64_t* ids,
                               const uint64_t* versions, int how, const void* manifest,
                               size_t manifest_bytes);
/* The job's last committed step (0: none) and its manifest, as of memtide_open or of this client's
 * last memtide_commit. The caller frees *manifest with memtide_free_text. */
MEMTIDE_API int memtide_committed(memtide_client* client, uint64_t* step, char** manifest,
                                  size_t* manifest_bytes);

/* --- Tensors over the range --- */

typedef struct memtide_span {
  uint64_t address;
  uint64_t bytes;
} memtide_span;
/* Wraps [address, address + bytes) as a DLManagedTensor: DLPack's struct without a version, one
 * dimension of uint8. Its deleter returns the span; it may run in any thread, and after
 * memtide_close. */
MEMTIDE_API int memtide_wrap(memtide_client* client, uint64_t address, uint64_t bytes,
                             void** dl_managed_tensor);
/* Writes up to `capacity` spans that deleters have returned to `spans`, oldest first, and their
 * number to *count. On a GPU a span is held back until the work launched before its return is
 * complete. */
MEMTIDE_API int memtide_take_returned(memtide_client* client, memtide_span* spans, size_t capacity,
                                      size_t* count);

/* --- Digests, without a client --- */

#define MEMTIDE_DIGEST_BYTES 16
#define MEMTIDE_LEAST_SECRET_BYTES 192
/* Computes the digest of the bytes of `count` pieces in a row; where they are cut does not matter.
 * Equal bytes have equal digests in every process with the same secret. Other bytes have other
 * digests, unless they were made by a process that knows the secret: it is made of random bytes,
 * and shared only by processes that trust each other. The digest is XXH3-128 in xxHash's canonical
 * form. Pieces may be in any memory that the CPU can read, and must not change meanwhile. Chunks
 * that are not mapped are leased by page faults. INVALID_ARGUMENT: the secret has fewer than
 * MEMTIDE_LEAST_SECRET_BYTES, or a piece ends beyond the last address. */
MEMTIDE_API int memtide_hash_pieces(const void* secret, size_t secret_bytes,
                                    const memtide_span* pieces, size_t count,
                                    uint8_t digest[MEMTIDE_DIGEST_BYTES]);

/* --- Reading a daemon's state, without a client --- */

/* An InspectNodeResponse (proto/memtide/v1/admin.proto) as JSON with the proto's field names.
 * socket_dir: NULL for the default. with_sessions: 1 lists sessions, jobs and quotas. max_chunks:
 * chunks to list. They are those of this user, for administrators of all. The caller frees *json
 * with memtide_free_text. */
MEMTIDE_API int memtide_inspect_node(const char* socket_dir, int with_sessions, uint32_t max_chunks,
                                     char** json);
/* A call of an administrator, or of a user about its own jobs: InspectNode, EndJob, Drain, SetQuota
 * or ClearQuota of the AdminService (proto/memtide/v1/admin.proto), with a request and a reply as
 * JSON. socket_dir: NULL for the default. The caller frees *reply with memtide_free_text. */
MEMTIDE_API int memtide_call_admin(const char* socket_dir, const char* method, const char* request,
                                   char** reply);
/* The node's metrics in Prometheus' text format. socket_dir: NULL for the default. The caller frees
 * *text with memtide_free_text. */
MEMTIDE_API int memtide_get_metrics(const char* socket_dir, char** text);
/* The trace of a job, its uses of chunks and how the daemon served them: *trace, a serialized Trace
 * (proto/memtide/v1/trace.proto) of *bytes bytes. job_id 0: the only open job of this user. The
 * caller frees *trace with memtide_free_text. */
MEMTIDE_API int memtide_get_trace(const char* socket_dir, uint64_t job_id, char** trace,
                                  size_t* bytes);
/* Converts a serialized Trace to JSON with the proto's field names. The caller frees *json with
 * memtide_free_text. INVALID_ARGUMENT: the bytes are not a Trace. */
MEMTIDE_API int memtide_read_trace(const char* trace, size_t bytes, char** json);
/* Adds what `json` has, a Trace in the same JSON, to a serialized Trace: such as its
 * activation_profile. The caller frees *extended, of *extended_bytes bytes, with memtide_free_text.
 * INVALID_ARGUMENT: one of them is not a Trace, or the JSON has more than 64 MiB. */
MEMTIDE_API int memtide_add_to_trace(const char* trace, size_t bytes, const char* json,
                                     size_t json_bytes, char** extended, size_t* extended_bytes);
/* Frees a text that this library returned. NULL is allowed. */
MEMTIDE_API void memtide_free_text(char* text);

/* --- This library --- */

/* Installs the SIGSEGV handler again, in case other code (such as Python's faulthandler) has
 * replaced it. The replaced handler receives the faults that are not memtide's. */
MEMTIDE_API int memtide_reinstall_handlers(void);

/* The message of the calling thread's last failed call, valid until its next failed call. */
MEMTIDE_API const char* memtide_last_error(void);
MEMTIDE_API const char* memtide_version(void); /* "MAJOR.MINOR.PATCH" */

#ifdef __cplusplus
}
#endif

#endif /* MEMTIDE_CLIENT_MEMTIDE_H_ */
