/* A complete trainer in C: fits a small network to a curve with momentum, saves every step, and goes on where it was after any
 * kill. Usage: trainer FOLDER STEPS
 *
 * The run is deterministic, so a run that was killed and started again ends with the same weights, bit for bit, as one that
 * was not: it prints a checksum of them at its end.
 */
#include <math.h>
#include <neve/neve.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kHidden = 64, kBatch = 32 };
static const double kRate = 0.02, kMomentum = 0.9;

/* All that training changes, and so all that a checkpoint holds. */
static struct {
  double in[kHidden], bias[kHidden], out[kHidden];
  double in_speed[kHidden], bias_speed[kHidden], out_speed[kHidden];
  uint64_t random;
  int64_t step;
} model;

static void check(neve_code code, neve_error* error, const char* what) {
  if (code == NEVE_OK) return;
  fprintf(stderr, "%s: %s\n", what, error != NULL ? neve_error_message(error) : "failed");
  neve_error_destroy(&error);
  exit(1);
}

/* ---- The model ---- */

static double uniform(void) {   /* in [-1, 1): a 64-bit linear congruence, whose state is part of the checkpoint */
  model.random = model.random * 6364136223846793005u + 1442695040888963407u;
  return (double)(int32_t)(model.random >> 32) / 2147483648.0;
}

static void begin(void) {
  model.random = 42;
  for (int i = 0; i < kHidden; ++i) {
    model.in[i] = 3 * uniform();
    model.bias[i] = uniform();
    model.out[i] = 0.1 * uniform();
  }
}

/* One step of gradient descent; the mean squared error of its batch. */
static double train(void) {
  double in_grad[kHidden] = {0}, bias_grad[kHidden] = {0}, out_grad[kHidden] = {0}, loss = 0;
  for (int sample = 0; sample < kBatch; ++sample) {
    const double x = uniform();
    double active[kHidden], found = 0;
    for (int i = 0; i < kHidden; ++i) {
      active[i] = tanh(model.in[i] * x + model.bias[i]);
      found += model.out[i] * active[i];
    }
    const double miss = found - sin(5 * x);
    loss += miss * miss / kBatch;
    for (int i = 0; i < kHidden; ++i) {
      const double back = 2 * miss / kBatch * model.out[i] * (1 - active[i] * active[i]);
      out_grad[i] += 2 * miss / kBatch * active[i];
      in_grad[i] += back * x;
      bias_grad[i] += back;
    }
  }
  for (int i = 0; i < kHidden; ++i) {
    model.in[i] += model.in_speed[i] = kMomentum * model.in_speed[i] - kRate * in_grad[i];
    model.bias[i] += model.bias_speed[i] = kMomentum * model.bias_speed[i] - kRate * bias_grad[i];
    model.out[i] += model.out_speed[i] = kMomentum * model.out_speed[i] - kRate * out_grad[i];
  }
  ++model.step;
  return loss;
}

/* ---- The checkpoint ---- */

enum { kTensors = 8 };
static const char kNames[] = "inbiasoutin.speedbias.speedout.speedrandomstep";
static const uint32_t kNameBytes[kTensors] = {2, 4, 3, 8, 10, 9, 6, 4};
static const uint8_t kTypes[kTensors] = {NEVE_F64, NEVE_F64, NEVE_F64, NEVE_F64, NEVE_F64, NEVE_F64, NEVE_U64, NEVE_I64};
static const uint8_t kRanks[kTensors] = {1, 1, 1, 1, 1, 1, 0, 0};
static const int64_t kExtents[] = {kHidden, kHidden, kHidden, kHidden, kHidden, kHidden};
static void* const kPlaces[kTensors] = {model.in,         model.bias,      model.out,     model.in_speed,
                                        model.bias_speed, model.out_speed, &model.random, &model.step};

/* Described once: every save of the same structure uses it. */
static neve_state* describe(void) {
  neve_tensors tensors = NEVE_TENSORS_INIT;
  neve_state* state = NULL;
  neve_error* error = NULL;
  tensors.count = kTensors;
  tensors.names = kNames;
  tensors.name_bytes = kNameBytes;
  tensors.dtypes = kTypes;
  tensors.ranks = kRanks;
  tensors.extents = kExtents;
  check(neve_state_create(&tensors, NULL, 0, 0, &state, &error), error, "describe the state");
  return state;
}

/* The newest complete save, from memory or from files, into the model; 0 when there is none yet. */
static int restore(neve_engine* engine) {
  neve_image* image = NULL;
  neve_error* error = NULL;
  size_t indexes[kTensors], at = 0;
  const neve_code code = neve_engine_find(engine, NULL, &image, &error);
  if (code == NEVE_NOT_FOUND) {   /* every place was looked at, and holds none: a fresh start */
    neve_error_destroy(&error);
    return 0;
  }
  check(code, error, "find the newest save");
  for (int i = 0; i < kTensors; at += kNameBytes[i++]) {
    char name[16] = "";
    memcpy(name, kNames + at, kNameBytes[i]);
    check(neve_image_tensor_find(image, name, &indexes[i], &error), error, "look a tensor up");
  }
  check(neve_image_tensors_read(image, kTensors, indexes, kPlaces, NULL, &error), error, "restore");
  neve_image_destroy(&image);
  return 1;
}

static void save(neve_engine* engine, const neve_state* state) {
  neve_save_request request = NEVE_SAVE_REQUEST_INIT;
  neve_ticket* ticket = NULL;
  neve_error* error = NULL;
  request.step = (uint64_t)model.step;
  request.state = state;
  request.addresses = (const void* const*)kPlaces;
  check(neve_engine_save(engine, &request, &ticket, &error), error, "save");
  neve_ticket_destroy(&ticket);   /* it goes on in the background; a trainer that wants to know waits for a stage of it */
}

int main(int argc, char** argv) {
  neve_options options = NEVE_OPTIONS_INIT;
  neve_engine* engine = NULL;
  neve_error* error = NULL;
  double loss = 0;
  uint64_t sum = 1469598103934665603u;
  if (argc != 3) return fprintf(stderr, "usage: trainer FOLDER STEPS\n"), 2;
  options.folder = argv[1];
  check(neve_engine_open(&options, &engine, &error), error, "open");
  neve_state* state = describe();
  if (restore(engine)) {
    printf("restored step %lld\n", (long long)model.step);
  } else {
    begin();
  }
  while (model.step < atoll(argv[2])) {
    loss = train();
    save(engine, state);
    printf("step %lld loss %.6f\n", (long long)model.step, loss);
    fflush(stdout);
  }
  for (size_t i = 0; i < sizeof model; ++i) sum = (sum ^ ((const unsigned char*)&model)[i]) * 1099511628211u;
  printf("checksum %016llx\n", (unsigned long long)sum);
  neve_state_destroy(&state);
  check(neve_engine_close(&engine, 1, 60, &error), error, "close");
  return 0;
}
