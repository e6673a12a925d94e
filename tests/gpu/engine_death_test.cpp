// The death of the service kernel by a failed check: pending and later commands end with EIO, nothing hangs, the fault
// is named, and the pool has the state of its last sync. Afterwards the process cannot use the GPU. The same process
// after execve(2), by which a mount continues, can use it again: there a PoolServer's GPU engine takes over the pool,
// and dies on request.
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <exception>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include <cuda_runtime.h>

#include "engine/engine_types.hpp"
#include "gpu/gpu_test_pool.hpp"
#include "server/pool_server.hpp"
#include "support/file_client.hpp"
#include "support/ring_session.hpp"

namespace gpu4fs::test {
namespace {

constexpr unsigned hang_limit_s = 100;

void report_hang(int) {
  static const char text[] = "FAILED: the program hangs\n0 passed, 1 failed\n";
  [[maybe_unused]] const auto written = ::write(STDOUT_FILENO, text, sizeof(text) - 1);
  ::_exit(1);
}

constexpr u64 root = format::inode_number_root;

client::Reply create(client::Session& session, const std::string& name) {
  FileOperation op;
  op.opcode = wire::Opcode::create;
  op.inode = root;
  op.name = name;
  op.mode = 0644;
  return FileClient(session).call(op);
}

client::Reply fsync(client::Session& session, u64 inode) {
  return FileClient(session).simple(wire::Opcode::fsync, inode);
}

// Puts an item into the run queue that names no command, until a worker has found it.
void break_engine(GpuTestPool& pool) {
  engine::RunQueue* const queue = &pool.engine()->run_queue;
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess, "a stream");
  engine::RunQueue seen{};
  while (!pool.host().has_died()) {
    cudaMemcpyAsync(&seen, queue, sizeof(seen), cudaMemcpyDeviceToHost, stream);
    if (cudaStreamSynchronize(stream) != cudaSuccess) continue;  // it is dying
    const u64 item = engine::RunQueue::cell_of(seen.head, no_command);
    u64* const cell = &seen.cells[seen.head & (seen.capacity - 1)];
    cudaMemcpyAsync(cell, &item, sizeof(item), cudaMemcpyHostToDevice, stream);
    cudaStreamSynchronize(stream);
  }
}

// Answers all upcalls until `done`.
void answer_upcalls(GpuTestPool& pool, Client& answers, const std::atomic<bool>& done) {
  while (!done.load()) {
    ring::Upcall upcall{};
    if (!pool.host().wait_upcall(&upcall, 1'000'000)) continue;
    if (ring::wants_answer(upcall.kind)) answers.call(engine::answer_upcall_command(upcall, Status::ok));
  }
}

// A file whose fsync has been answered.
void keep_a_file(GpuTestPool& pool, Client& answers, client::Session& session) {
  const client::Reply made = create(session, "kept");
  check(made.status == Status::ok, "a file is created");
  std::atomic<bool> done{false};
  client::Reply reply;
  std::thread syncing([&] {
    reply = fsync(session, made.result);
    done = true;
  });
  answer_upcalls(pool, answers, done);
  syncing.join();
  check(reply.status == Status::ok, "fsync with its flushes answered");
}

void test_death(GpuTestPool& pool) {
  const auto session = pool.open_session();
  const auto other = pool.open_session();
  Client answers(pool.host(), {.data_length = page_size, .internal = true});
  keep_a_file(pool, answers, *session);

  // One command waits for the server's answer, another for the checkpoint.
  const client::Reply made = create(*session, "lost");
  check(made.status == Status::ok, "another file is created");
  client::Reply pending[2];
  std::thread first([&] { pending[0] = fsync(*session, made.result); });
  ring::Upcall upcall{};
  while (!pool.host().wait_upcall(&upcall, 1'000'000)) {
  }
  check(upcall.kind == ring::UpcallKind::flush_device, "the checkpoint asks for a flush");
  std::thread second([&] { pending[1] = fsync(*other, made.result); });
  check(!pool.host().has_died() && pool.host().fault_text().empty(), "the engine lives");
  break_engine(pool);
  first.join();
  second.join();
  check(pending[0].status == Status::engine_died, "the command that waits for an upcall ends");
  check(pending[1].status == Status::engine_died, "the command that waits for a checkpoint ends");
  check(to_errno(Status::engine_died) == EIO, "their errno is EIO");

  const std::string fault = pool.host().fault_text();
  std::printf("%s\n", fault.c_str());
  check(fault.find("engine/execute.hpp:") != std::string::npos, "the fault names file and line");
  check(fault.find("index < engine.config.command_count (65535, ") != std::string::npos,
        "the fault names condition and values");
  check(create(*session, "later").status == Status::engine_died, "a later command ends");
  check(pool.checkpoint() == Status::engine_died, "a later checkpoint ends");
  check(!pool.host().wait_upcall(&upcall, 1'000'000), "no more upcalls");
  try {
    check(create(*pool.open_session(), "later").status == Status::engine_died, "a later session is of no use");
  } catch (const std::exception&) {
    check(true, "no session is opened any more");
  }
}

// The CPU engine serves the pool that the GPU engine has left.
void test_what_is_left(const GpuTestPool& pool) {
  const fsck::CheckResult result = pool.check();
  check(result.findings.error_count() == 0, "fsck finds no error" + findings_text(result));
  session::ServerOptions options;
  options.device_paths = pool.device_paths();
  options.engine = session::EngineChoice::cpu;
  server::PoolServer server(options);
  server.start();
  const server::LocalSession local = server.open_session(u64{1} << 20);
  client::Session session({local.producer, local.port, local.owner});
  FileClient client(session);
  FileOperation op;
  op.opcode = wire::Opcode::lookup;
  op.inode = root;
  op.name = "kept";
  check(client.call(op).status == Status::ok, "what fsync has answered for is there");
  op.name = "later";
  check(client.call(op).status == Status::not_found, "what came after its end is not");
}

// In a fresh program image.
void test_next_engine(const std::vector<std::string>& device_paths) {
  session::ServerOptions options;
  options.device_paths = device_paths;
  options.engine = session::EngineChoice::cuda;
  options.generation_skip = 7;
  server::PoolServer server(options);
  std::atomic<bool> was_told{false};
  server.on_death([&] { was_told = true; });
  server.start();
  check(server.uses_gpu(), "the GPU serves again");
  const server::LocalSession local = server.open_session(u64{1} << 20);
  client::Session session({local.producer, local.port, local.owner});
  FileClient client(session);
  FileOperation op;
  op.opcode = wire::Opcode::lookup;
  op.inode = root;
  op.name = "kept";
  check(client.call(op).status == Status::ok, "the next GPU engine finds what was synced");
  const client::Reply made = create(session, "another");
  check(made.status == Status::ok && fsync(session, made.result).status == Status::ok, "and takes changes");
  server.engine().request_death();
  check(server.engine().has_died(), "an engine dies on request");
  check(server.engine().fault_text().find("engine.hpp:") != std::string::npos, server.engine().fault_text());
  check(create(session, "late").status == Status::engine_died, "a command after that ends");
  while (!was_told) std::this_thread::yield();
  check(!server.stop(), "its end is not a clean one");
}

void run_again(const std::vector<std::string>& device_paths) {
  test_next_engine(device_paths);
  std::filesystem::remove_all(std::filesystem::path(device_paths.front()).parent_path());
}

// Returns only if it fails.
void execute_again(const std::vector<std::string>& device_paths) {
  std::vector<std::string> words = {"engine_death_test"};
  words.insert(words.end(), device_paths.begin(), device_paths.end());
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  std::fflush(nullptr);
  ::execv("/proc/self/exe", pointers.data());
  check(false, "the program is executed again");
}

void run() {
  TestPoolOptions options;
  options.flush_by_upcall = true;
  GpuTestPool pool(options);
  test_death(pool);
  pool.crash();
  test_what_is_left(pool);
  // The pool's folder outlives this image, and so must the failures so far.
  if (failed_count == 0) execute_again(pool.device_paths());
}

}  // namespace
}  // namespace gpu4fs::test

int main(int count, char** words) {
  using namespace gpu4fs::test;
  std::signal(SIGALRM, report_hang);
  ::alarm(hang_limit_s);
  try {
    if (!has_gpu()) return finish();
    if (count > 1) {
      run_again({words + 1, words + count});
    } else {
      run();
    }
  } catch (const std::exception& error) {
    check(false, error.what());
  }
  return finish();
}
