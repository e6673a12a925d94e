// The messages by which a process opens a session with a server through its session socket (docs/wire.md, section 8).
//
// Each is one record of a SOCK_SEQPACKET connection, in the machine's byte order. Reserved fields are zero.
#pragma once

#include "base/types.hpp"

namespace gpu4fs::wire {

inline constexpr u64 session_hello_magic = 0x6f6c6c6573346667ull;    // "gf4sello"
inline constexpr u64 session_welcome_magic = 0x656d6f6373346667ull;  // "gf4scome"
inline constexpr u32 session_protocol_version = 1;

// From the client, once, as its first and only message.
struct SessionHello {
  u64 magic;
  u32 version;       // session_protocol_version
  u32 ring_version;  // ring::ring_version, which covers commands and status codes
  u32 depth_log2;    // 1 to 10
  u32 reserved0;
  u64 data_length;  // bytes of the data area, rounded up to whole pages; at least one
  u64 reserved[4];
};
static_assert(sizeof(SessionHello) == 64);

enum class SessionEngine : u32 {
  wakes_clients = 0,  // the engine wakes a client that sleeps on its ring's wake_sequence
  is_polled = 1,      // it cannot; a client looks at its completions now and then
};

// From the server. With `error` 0 it carries two file descriptors (SCM_RIGHTS): the session's memory, a memfd whose
// length is sealed, and the doorbell, an eventfd. Otherwise the server closes the connection after it.
struct SessionWelcome {
  u64 magic;
  u32 version;
  u32 error;   // a positive errno; 0: the session is open
  u32 status;  // the Status behind it
  SessionEngine engine;
  u32 depth_log2;
  u32 reserved0;
  u64 data_length;   // in whole pages
  u64 total_length;  // of the session's memory
  u8 pool_uuid[16];
  u8 reserved[64];
  char text[128];  // what is wrong, for people; terminated
};
static_assert(sizeof(SessionWelcome) == 256);

}  // namespace gpu4fs::wire
