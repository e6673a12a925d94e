// The states that an actor accepts after a crash: some operations may be present in part, even if they had ended.
#include <gtest/gtest.h>

#include "model/actor.hpp"
#include "support/test_pool.hpp"

namespace gpu4fs::test::actor_test {
namespace {

constexpr u32 zero_range = 0x10;
constexpr u64 length = 20000;

class ActorTest : public ::testing::Test {
 protected:
  ActorTest() : pool_(TestPoolOptions{}), session_(pool_.open_session()), client_(*session_), actor_(PosixModel{}) {
    FileOperation op = on_inode(wire::Opcode::create, PosixModel::root);
    op.name = "file";
    op.mode = 0600;
    actor_.begin({}, op);
    const client::Reply made = client_.call(op);
    EXPECT_EQ(actor_.end(made, &client_), "");
    file_ = made.result;
    FileOperation write = on_inode(wire::Opcode::write, file_, 0, length);
    write.data_seed = 5;
    actor_.begin({}, write);
    EXPECT_EQ(actor_.end(client_.call(write, Actor::content(write)), &client_), "");
    actor_.promise(actor_.ended_count());
  }

  FileOperation zeroing(u64 offset, u64 size) const {
    FileOperation op = on_inode(wire::Opcode::fallocate, file_, offset, size);
    op.mode = zero_range;
    return op;
  }
  // The actor learns that `told` was done.
  void tell(const FileOperation& told) {
    actor_.begin({}, told);
    EXPECT_EQ(actor_.end({Status::ok, told.opcode == wire::Opcode::write ? told.length : 0}, nullptr), "");
  }
  std::vector<StepMatch> matches() {
    actor_.consider_mixtures(client_);
    return actor_.matches(found());
  }
  std::string found() { return PoolText(*session_).text(); }

  TestPool pool_;
  std::unique_ptr<client::Session> session_;
  FileClient client_;
  Actor actor_;
  u64 file_ = 0;
};

TEST_F(ActorTest, AFallocateIsThereWholeUnlessSpaceIsTight) {
  tell(zeroing(1830, 15000));
  EXPECT_EQ(matches(), (std::vector<StepMatch>{{2, true}})) << "nothing of it";
  EXPECT_EQ(client_.call(zeroing(1830, 4096 - 1830)).status, Status::ok);
  EXPECT_TRUE(matches().empty());
  actor_.set_tight();
  EXPECT_EQ(matches(), (std::vector<StepMatch>{{3, false}}));
  EXPECT_EQ(actor_.survive(3, found(), client_), "");
  EXPECT_EQ(ModelText(actor_.model()).text(), found()) << "it goes on from there";
}

TEST_F(ActorTest, WhatWasPromisedIsThereWhole) {
  actor_.set_tight();
  tell(zeroing(1830, 15000));
  actor_.promise(3);
  EXPECT_EQ(client_.call(zeroing(1830, 4096 - 1830)).status, Status::ok);
  EXPECT_TRUE(matches().empty());
}

TEST_F(ActorTest, BytesBesideTheRangeAreThoseOfBefore) {
  actor_.set_tight();
  tell(zeroing(1830, 15000));
  EXPECT_EQ(client_.call(zeroing(1829, 4096 - 1829)).status, Status::ok);
  EXPECT_TRUE(matches().empty());
}

TEST_F(ActorTest, APageOfAFallocateIsThereWholeOrNotAtAll) {
  actor_.set_tight();
  tell(zeroing(1830, 15000));
  EXPECT_EQ(client_.call(zeroing(1830, 500)).status, Status::ok);
  EXPECT_TRUE(matches().empty());
}

// Another actor, whose one step had seen `seen` steps of this one.
TEST_F(ActorTest, WhoSawTheEndOfAFallocateDoesNotAcceptAPart) {
  actor_.set_tight();
  tell(zeroing(1830, 15000));
  EXPECT_EQ(client_.call(zeroing(1830, 4096 - 1830)).status, Status::ok);
  for (const u64 seen : {2u, 3u}) {
    Actor other{PosixModel{}};
    FileOperation op = on_inode(wire::Opcode::create, PosixModel::root);
    op.name = "other";
    op.mode = 0600;
    other.begin({seen, 0}, op);
    EXPECT_EQ(other.end({Status::ok, 77}, nullptr), "");
    actor_.consider_mixtures(client_);
    std::vector<u64> kept;
    const std::string problem = survivors_problem({&actor_, &other}, {found(), ModelText(other.model()).text()}, &kept);
    EXPECT_EQ(problem.empty(), seen == 2) << problem;
    EXPECT_EQ(kept, (std::vector<u64>{3, 1}));
  }
}

TEST_F(ActorTest, AChangeOfSizeIsNotThereWithoutTheRest) {
  FileOperation both = on_inode(wire::Opcode::setattr, file_);
  both.mask = format::set_size | format::set_mode;
  both.attributes.size_bytes = 100;
  both.attributes.mode = 0640;
  tell(both);
  actor_.set_tight();
  FileOperation part = both;
  part.mask = format::set_size;
  EXPECT_EQ(client_.call(part).status, Status::ok);
  EXPECT_TRUE(matches().empty());
  EXPECT_EQ(client_.call(both).status, Status::ok);
  EXPECT_EQ(matches(), (std::vector<StepMatch>{{3, true}}));
}

TEST_F(ActorTest, AWriteIsThereWholeUnlessSpaceIsTight) {
  FileOperation write = on_inode(wire::Opcode::write, file_, 0, 9000);
  write.data_seed = 6;
  tell(write);
  const std::vector<u8> content = Actor::content(write);
  FileOperation part = write;
  part.length = 4096;
  EXPECT_EQ(client_.call(part, {content.begin(), content.begin() + 4096}).status, Status::ok);
  EXPECT_TRUE(matches().empty());
  actor_.set_tight();
  EXPECT_EQ(matches(), (std::vector<StepMatch>{{3, false}})) << "but where space is tight";
  EXPECT_EQ(client_.call(write, content).status, Status::ok);
  EXPECT_EQ(matches(), (std::vector<StepMatch>{{3, true}}));
}

}  // namespace
}  // namespace gpu4fs::test::actor_test
