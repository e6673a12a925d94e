// Classes of commands that share a virtual queue: log, metadata, data, background.
//
// Each class may have a share of the queue's places by its weight, and no more commands than that are submitted at
// once. All shares together fit into the queue. So a command that its class admits finds room at once, and in front of
// it there are at most the shares of the others: background traffic delays the log by its share of commands and no
// further, however much of it waits. What waits for its class has no ticket of the queue and delays nobody else. In a
// class commands are admitted in the order of its own tickets. A class's unused share stays free.
//
// A completion ends its command's place in the class when it is taken, so poll_classes() takes the place of poll().
#pragma once

#include <type_traits>

#include "base/mutant.hpp"
#include "device/nvme/submit.hpp"

namespace gpu4fs::nvme {

enum class ServiceClass : u32 { log, metadata, data, background };
inline constexpr u32 service_class_count = 4;

struct ClassWeights {
  u32 weights[service_class_count];
};
GPU4FS_FN constexpr ClassWeights class_weights_default() {
  return {{4, 2, 4, 1}};
}

// Of one class of one queue.
struct alignas(cache_line) ClassGate {
  u32 next_ticket;  // atomic
  u32 ended;        // atomic
  u32 share;
};

// Plain data in engine memory. The queue is used by these functions only.
struct ClassQueue {
  VirtualQueue* queue;
  ClassGate gates[service_class_count];
};
static_assert(std::is_trivially_copyable_v<ClassQueue>);

// The queue is empty, and has a place for each class at least. Also after a reset of the queue.
GPU4FS_FN inline void place_classes(ClassQueue& classes, VirtualQueue* queue, const ClassWeights& weights) {
  const u32 capacity = detail::capacity_of(*queue);
  GPU4FS_CHECK_GE(capacity, service_class_count);
  u64 sum = 0;
  for (const u32 weight : weights.weights) sum += weight;
  GPU4FS_CHECK_GT(sum, 0u);
  classes.queue = queue;
  // One place for each, and the rest by weight.
  for (u32 i = 0; i < service_class_count; ++i) {
    const u64 rest = capacity - service_class_count;
    classes.gates[i] = {0, 0, static_cast<u32>(1 + rest * weights.weights[i] / sum)};
  }
}

// As poll().
template <class Group, class Visit>
GPU4FS_FN u32 poll_classes(Group g, ClassQueue& classes, Visit&& visit) {
  return poll(g, *classes.queue, [&](const Outcome& outcome) {
    ClassGate& gate = classes.gates[outcome.service_class % service_class_count];
    fetch_add<Order::release, Scope::engine>(&gate.ended, 1);
    visit(outcome);
  });
}

namespace detail {

// Waits until the class admits `count` commands more. False: the controller has failed.
template <class Group, class Poll, class Wait>
GPU4FS_FN bool enter_class(Group g, ClassQueue& classes, ClassGate& gate, u32 count, Poll&& poll_once, Wait&& wait) {
  const u32 first = on_leader(g, [&] { return fetch_add<Order::relaxed, Scope::engine>(&gate.next_ticket, count); });
  for (;;) {
    const u32 turn = on_leader(g, [&] {
      if (failure_of(*classes.queue->controller) != Failure::none) return 2u;
      const u32 ended = load<Order::acquire, Scope::engine>(&gate.ended);
      const u32 limit = GPU4FS_MUTANT(nvme_class_overfilled, gate.share, gate.share + 1);
      const u32 unfinished = first + count - ended;
      // Commands with later tickets may have ended before this one is submitted: then the difference is negative.
      const bool is_passed = GPU4FS_MUTANT(nvme_class_order_assumed, unfinished > 1u << 31, false);
      return unfinished <= limit || is_passed ? 1u : 0u;
    });
    if (turn != 0) return turn == 1;
    if (poll_once() == 0) wait();
  }
}

}  // namespace detail

// As submit(), for commands of one class; the same class on all ranks. Many of them go in several parts.
template <class Group, class Visit, class Wait>
GPU4FS_FN SubmitResult submit_class(Group g, ClassQueue& classes, ServiceClass service_class,
                                    const RankCommand& command, Visit&& visit, Wait&& wait) {
  ClassGate& gate = classes.gates[static_cast<u32>(service_class)];
  const u32 votes = g.ballot(command.is_present);
  const u32 wanted = popcount(votes);
  const u32 number = popcount(votes & static_cast<u32>(low_bits(g.rank())));
  const auto poll_once = [&] { return poll_classes(g, classes, visit); };
  const auto visit_inside = [&](const Outcome& outcome) {
    ClassGate& ended = classes.gates[outcome.service_class % service_class_count];
    fetch_add<Order::release, Scope::engine>(&ended.ended, 1);
    visit(outcome);
  };
  SubmitResult result = SubmitResult::idle;
  for (u32 done = 0; done < wanted;) {
    const u32 count = minimum(wanted - done, gate.share);
    const bool is_part = command.is_present && number >= done && number < done + count;
    if (!detail::enter_class(g, classes, gate, count, poll_once, wait)) {
      return command.is_present && number >= done ? SubmitResult::failed : result;
    }
    const RankCommand part{command.entry, command.cookie, is_part, static_cast<u32>(service_class)};
    const SubmitResult found = submit(g, *classes.queue, part, visit_inside, wait);
    if (is_part) result = found;
    done += count;
  }
  return result;
}

}  // namespace gpu4fs::nvme
