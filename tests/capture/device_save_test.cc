#include "capture/device_save.h"

#include <thread>

#include "base/sync/notification.h"
#include "capture/device_world.h"
#include "capture/orders.h"

namespace neve::capture {
namespace {

using device::BatchForm;
using device::Fault;
using device::Pace;
using device::SimulatedOptions;

// Who runs first: the caller's stream, the copies', the packing one.
struct Paces {
  Pace caller, copies, packing;
};
constexpr Paces kPaces[] = {
    {Pace::kEager, Pace::kEager, Pace::kEager},    {Pace::kEager, Pace::kEager, Pace::kLate},
    {Pace::kEager, Pace::kLate, Pace::kEager},     {Pace::kEager, Pace::kLate, Pace::kLate},
    {Pace::kLate, Pace::kEager, Pace::kEager},     {Pace::kLate, Pace::kEager, Pace::kLate},
    {Pace::kLate, Pace::kLate, Pace::kEager},      {Pace::kLate, Pace::kLate, Pace::kLate},
    {Pace::kSeeded, Pace::kSeeded, Pace::kSeeded},
};

SimulatedOptions Options(const Paces& paces, uint64_t seed = 1) {
  SimulatedOptions options;
  options.seed = seed;
  options.memory_bytes = 16 << 20;
  options.paces = {paces.copies, paces.packing};
  return options;
}

class Omitted {
 public:
  explicit Omitted(Order order) { Omit(order); }
  ~Omitted() { Omit(Order::kCount); }
};

// Update to 1, save with a fence, update to 2 after it: "" when the image is all 1, else what is wrong. `first` marks tensors
// that are updated as soon as save() would return.
std::string Round(DeviceWorld& world, const std::shared_ptr<DeviceLane>& lane, bool with_first) {
  const std::vector<uint8_t> fenced = with_first ? world.Fenced() : std::vector<uint8_t>();
  device::Simulated& device = world.device();
  const DeviceStream caller = world.caller();
  device.Hold();
  world.Update(1);
  auto save = DeviceSave::Begin({{lane, world.Plan(fenced)}}, world.addresses(), {&caller, 1}, {});
  if (!save.ok()) return save.status().ToString();
  absl::Status captured;
  std::thread helper([&] {
    captured = (*save)->Run(world.image(), world.registered());
    const absl::Status ended = (*save)->Await();
    if (captured.ok()) captured = ended;
  });
  if (!world.registered()) device.Release();  // the helper stops in each copy: it needs the device to get on
  absl::Status status;
  if (with_first) {
    status.Update((*save)->FenceFirst({&caller, 1}, 60));
    world.Update(2, fenced, 0);
    device.Settle();
  }
  status.Update((*save)->Fence({&caller, 1}, 60));
  world.Update(2);
  device.Settle();
  device.Release();
  helper.join();
  status.Update(captured);
  std::string fault = world.Fault(1);
  status.Update(device.SynchronizeStream({caller.handle}));
  return status.ok() ? fault : status.ToString();
}

std::string RoundOf(const Paces& paces, bool with_first, uint64_t seed = 1) {
  DeviceWorld world(Options(paces, seed), paces.caller);
  auto lane = DeviceLane::Create(world.shared_device());
  std::string fault = Round(world, lane.value(), with_first);
  // The second save of a lane meets events that were recorded, and scratch that was used.
  if (fault.empty()) {
    std::memset(world.image().data(), 0, world.image().size());
    fault = Round(world, *lane, with_first);
  }
  return fault;
}

class OrderTest : public ::testing::TestWithParam<Order> {};

TEST_P(OrderTest, WithoutItAnImageIsTorn) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "what is left out here is a wait: the race is meant";
#endif
  Omitted omitted(GetParam());
  std::vector<std::string> faults;
  for (const Paces& paces : kPaces) {
    if (std::string fault = RoundOf(paces, /*with_first=*/true); !fault.empty()) faults.push_back(std::move(fault));
  }
  EXPECT_FALSE(faults.empty()) << Name(GetParam()) << " can be left out and nobody sees it";
}

INSTANTIATE_TEST_SUITE_P(Mutations, OrderTest,
                         ::testing::Values(Order::kCallerIsMarked, Order::kCopiesAwaitCaller, Order::kPackingAwaitsCaller,
                                           Order::kListBeforeGather, Order::kPackingIsMarked, Order::kCopiesAwaitPacking,
                                           Order::kScratchIsMarked, Order::kPackingAwaitsScratch, Order::kEndAfterCopies,
                                           Order::kCallerAwaitsEnd, Order::kFirstAwaitedInSave, Order::kFirstBeforeRest,
                                           Order::kCapturedAfterEnd),
                         [](const auto& info) {
                           std::string name(Name(info.param));
                           std::replace(name.begin(), name.end(), ' ', '_');
                           return name;
                         });

TEST(DeviceSave, MEM_06_EveryImageIsOfTheMomentOfTheSave) {
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    for (const Paces& paces : kPaces) {
      for (bool with_first : {false, true}) {
        ASSERT_EQ(RoundOf(paces, with_first, seed), "") << "seed " << seed << " paces " << static_cast<int>(paces.caller)
                                                        << static_cast<int>(paces.copies) << static_cast<int>(paces.packing);
      }
    }
  }
}

// Returns whether the fence came back although the copies could not have been handed over.
bool FenceReturnsEarly(double patience_s) {
  const Paces paces{Pace::kEager, Pace::kLate, Pace::kLate};
  DeviceWorld world(Options(paces), paces.caller, /*registered=*/false);
  auto lane = DeviceLane::Create(world.shared_device());
  const DeviceStream caller = world.caller();
  world.device().Hold();
  world.Update(1);
  auto save = DeviceSave::Begin({{*lane, world.Plan()}}, world.addresses(), {&caller, 1}, {}).value();
  // The image is not registered: the helper stops in its first copy, since the device is held.
  std::thread helper([&] {
    EXPECT_TRUE(save->Run(world.image(), false).ok());
    EXPECT_TRUE(save->Await().ok());
  });
  sync::Mutex mutex;
  sync::Condition changed;
  bool fenced = false;
  std::thread trainer([&] {
    EXPECT_TRUE(save->Fence({&caller, 1}, 600).ok());
    sync::MutexLock lock(mutex);
    fenced = true;
    changed.NotifyAll();
  });
  bool early;
  {
    sync::MutexLock lock(mutex);
    early = changed.WaitFor(mutex, patience_s, [&] { return fenced; });
  }
  world.device().Release();
  helper.join();
  trainer.join();
  return early;
}

TEST(DeviceSave, AFenceWaitsOnTheHostUntilTheEndIsRecorded) { EXPECT_FALSE(FenceReturnsEarly(0.05)); }

TEST(DeviceSave, WithoutThatWaitAFenceHoldsNothing) {
  Omitted omitted(Order::kFenceAwaitsRecord);
  EXPECT_TRUE(FenceReturnsEarly(600));
}

TEST(DeviceSave, TheImageIsTheSameHoweverItsBytesCome) {
  struct Way {
    BatchForm batch;
    bool kernels, registered;
  };
  for (const Way& way :
       {Way{BatchForm::k13000, true, true}, Way{BatchForm::k12080, true, true}, Way{BatchForm::kNone, true, true},
        Way{BatchForm::k13000, false, true}, Way{BatchForm::kNone, false, true}, Way{BatchForm::k13000, true, false},
        Way{BatchForm::kNone, false, false}}) {
    SCOPED_TRACE(::testing::Message() << static_cast<int>(way.batch) << way.kernels << way.registered);
    SimulatedOptions options = Options(kPaces[8]);
    options.batch = way.batch;
    options.kernels = way.kernels;
    DeviceWorld world(options, Pace::kSeeded, way.registered);
    auto lane = DeviceLane::Create(world.shared_device());
    world.CaptureHost();
    ASSERT_EQ(Round(world, *lane, false), "");
    EXPECT_EQ(world.Fault(1, /*host=*/true), "");
    const device::SimulatedCounts counts = world.device().counts();
    EXPECT_EQ(counts.gathers > 0, way.kernels);
    EXPECT_EQ(counts.batches > 0, way.batch != BatchForm::kNone && way.registered);
  }
}

TEST(DeviceSave, BytesOfAStridedTensorAreInLogicalOrder) {
  for (bool kernels : {true, false}) {
    SimulatedOptions options = Options(kPaces[8]);
    options.kernels = kernels;
    DeviceWorld world(options, Pace::kSeeded);
    // The device's memory gets other bytes than one number, so that an order shows.
    for (const format::StoredTensor& stored : world.layout().stored()) {
      if (stored.contiguous || stored.source != format::StoredTensor::Source::kTensor) continue;
      const format::TensorSpec& spec = world.layout().structure().tensors[stored.index];
      std::vector<uint8_t> bytes(tensor::SpanBytes(spec.shape, spec.strides, 1));
      for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(i * 31 + i / 251);
      world.device().Poke(const_cast<void*>(world.addresses()[stored.index]), bytes.data(), bytes.size());
      auto lane = DeviceLane::Create(world.shared_device());
      auto save = DeviceSave::Begin({{*lane, world.Plan()}}, world.addresses(), {}, {}).value();
      ASSERT_TRUE(save->Run(world.image(), true).ok());
      ASSERT_TRUE(save->Await().ok());
      std::vector<uint8_t> wanted(stored.bytes);
      tensor::StridedCopy(spec.shape, spec.strides, 1)
          .Gather(reinterpret_cast<std::byte*>(bytes.data()), 0, stored.bytes, reinterpret_cast<std::byte*>(wanted.data()));
      EXPECT_EQ(std::memcmp(world.image().data() + stored.offset, wanted.data(), wanted.size()), 0) << spec.name << kernels;
    }
  }
}

TEST(DeviceSave, MEM_05_WithoutRoomForScratchTheCopiesGoDirect) {
  DeviceWorld world(Options(kPaces[8]), Pace::kSeeded);
  auto lane = DeviceLane::Create(world.shared_device());
  world.device().FailAlways(Fault::kAllocate);
  EXPECT_EQ(Round(world, *lane, false), "");
  EXPECT_EQ(world.device().counts().gathers, 0u);
  EXPECT_TRUE(world.device().Health().ok());
}

TEST(DeviceSave, MEM_05_ScratchDoesNotGrowWithTheState) {
  DeviceWorld world(Options(kPaces[8]), Pace::kSeeded);
  const uint64_t before = world.device().counts().allocated_bytes;
  auto lane = DeviceLane::Create(world.shared_device());
  EXPECT_EQ(Round(world, *lane, false), "");
  const uint64_t scratch = world.device().counts().allocated_bytes_max - before;
  EXPECT_GT(scratch, 0u);
  EXPECT_LE(scratch, 2 * (DeviceWorld::Small().window_bytes + DeviceWorld::Small().window_items_max * 16 + 256));
  const DevicePlanOptions defaults;
  EXPECT_LE(defaults.window_bytes + uint64_t{defaults.window_items_max} * 16 + 256, uint64_t{32} << 20);
  EXPECT_EQ(Round(world, *lane, true), "");
  lane->reset();
  EXPECT_EQ(world.device().counts().allocated_bytes, before);
}

TEST(DeviceSave, AStreamBeingCapturedIsRefused) {
  DeviceWorld world(Options(kPaces[8]), Pace::kSeeded);
  auto lane = DeviceLane::Create(world.shared_device());
  const DeviceStream caller = world.caller();
  world.device().SetCapturing({caller.handle}, true);
  const auto save = DeviceSave::Begin({{*lane, world.Plan()}}, world.addresses(), {&caller, 1}, {});
  EXPECT_TRUE(absl::IsInvalidArgument(save.status())) << save.status();
}

TEST(DeviceSave, EveryCallThatFailsFailsTheSaveAndLeavesNoCopyBehind) {
  for (Fault fault : {Fault::kCopyRefused, Fault::kRecord, Fault::kCopyFails}) {
    for (int nth : {1, 2, 5, 9}) {
      SCOPED_TRACE(::testing::Message() << "fault " << static_cast<int>(fault) << " at " << nth);
      DeviceWorld world(Options(kPaces[7]), Pace::kLate);
      auto lane = DeviceLane::Create(world.shared_device());
      const DeviceStream caller = world.caller();
      auto save = DeviceSave::Begin({{*lane, world.Plan()}}, world.addresses(), {&caller, 1}, {}).value();
      world.device().FailAt(fault, nth);
      const absl::Status run = save->Run(world.image(), true), ended = save->Await();
      EXPECT_FALSE(run.ok() && ended.ok());
      EXPECT_TRUE(save->Fence({&caller, 1}, 1).ok());  // nothing to wait for: training goes on
      EXPECT_EQ(world.device().Health().ok(), fault != Fault::kCopyFails);
    }
  }
}

TEST(DeviceSave, AFenceThatTakesTooLongGivesTheSaveUp) {
  const Paces paces{Pace::kEager, Pace::kLate, Pace::kLate};
  DeviceWorld world(Options(paces), paces.caller, /*registered=*/false);
  auto lane = DeviceLane::Create(world.shared_device());
  const DeviceStream caller = world.caller();
  world.device().Hold();
  auto save = DeviceSave::Begin({{*lane, world.Plan()}}, world.addresses(), {&caller, 1}, {}).value();
  absl::Status ended;
  std::thread helper([&] {
    save->Run(world.image(), false).IgnoreError();
    ended = save->Await();
  });
  EXPECT_TRUE(absl::IsDeadlineExceeded(save->Fence({&caller, 1}, 0.01)));
  world.device().Release();
  helper.join();
  EXPECT_TRUE(absl::IsDeadlineExceeded(ended)) << ended;
}

TEST(DeviceSave, ACapOnTheRateEndsWithTheFence) {
  DeviceWorld world(Options(kPaces[0]), Pace::kEager);
  auto lane = DeviceLane::Create(world.shared_device());
  const DeviceStream caller = world.caller();
  // At a byte a second the copies would take days.
  auto save = DeviceSave::Begin({{*lane, world.Plan()}}, world.addresses(), {&caller, 1}, {.rate_bytes_per_s = 1}).value();
  std::thread helper([&] {
    EXPECT_TRUE(save->Run(world.image(), true).ok());
    EXPECT_TRUE(save->Await().ok());
  });
  EXPECT_TRUE(save->Fence({&caller, 1}, 600).ok());
  helper.join();
}

TEST(DevicePlan, AStridedTensorOfTooManyDimensionsIsUnsupported) {
  auto structure = std::make_shared<format::Structure>();
  tensor::Dims shape(17, 2), strides(17);
  for (size_t i = 0; i < 17; ++i) strides[i] = int64_t{2} << i;
  structure->tensors.push_back({"deep", DType::kU8, shape, strides});
  std::vector<uint8_t> memory(tensor::SpanBytes(shape, strides, 1));
  const void* address = memory.data();
  const auto layout = format::Layout::Build(structure, {&address, 1}, format::GrowCapacities({}, 0, {})).value();
  const int32_t device = 0;
  const auto plan = DevicePlan::Build(layout, 0, {&device, 1}, {});
  EXPECT_TRUE(absl::IsUnimplemented(plan.status())) << plan.status();
  EXPECT_NE(plan.status().message().find("deep"), std::string::npos);
}

}  // namespace
}  // namespace neve::capture
