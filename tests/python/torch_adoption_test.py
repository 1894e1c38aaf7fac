"""Libraries whose scripts are not changed: their saves and loads go through neve. Skipped where a library is not installed."""

import subprocess
import sys

import pytest
from child import environment

COUNT = """
import sys
import neve.files
calls = {"save": 0, "load": 0}
def counted(name):
    real = getattr(neve.files, name)
    def call(*arguments, **options):
        calls[name] += 1
        return real(*arguments, **options)
    setattr(neve.files, name, call)
counted("save"), counted("load")
import torch
folder = sys.argv[1]
"""

LIGHTNING = """
import lightning
class Model(lightning.LightningModule):
    def __init__(self, width=4):
        super().__init__()
        self.save_hyperparameters()
        self.layer = torch.nn.Linear(width, 1)
    def training_step(self, batch, index):
        return self.layer(batch[0]).square().mean()
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.1)
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(8, 4)), batch_size=4)
def trainer(epochs):
    return lightning.Trainer(max_epochs=epochs, accelerator="cpu", logger=False, enable_progress_bar=False,
                             enable_model_summary=False, default_root_dir=folder)
model, first = Model(), trainer(1)
first.fit(model, data)
path = first.checkpoint_callback.best_model_path
first.save_checkpoint(folder + "/last.ckpt")
again = Model()
second = trainer(2)
second.fit(again, data, ckpt_path=folder + "/last.ckpt", weights_only=False) if "weights_only" in \\
    __import__("inspect").signature(second.fit).parameters else second.fit(again, data, ckpt_path=folder + "/last.ckpt")
assert second.current_epoch == 2 and path
assert torch.equal(Model.load_from_checkpoint(folder + "/last.ckpt").layer.weight, model.layer.weight)
"""

TRANSFORMERS = """
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=1, n_embd=8, vocab_size=16, n_positions=8, bos_token_id=0, eos_token_id=0))
data = [{"input_ids": torch.arange(8), "labels": torch.arange(8)} for _ in range(8)]
def trainer(steps):
    arguments = TrainingArguments(output_dir=folder, max_steps=steps, save_steps=2, per_device_train_batch_size=2, report_to=[],
                                  use_cpu=True, disable_tqdm=True)
    return Trainer(model=model, args=arguments, train_dataset=data)
trainer(2).train()
again = trainer(4)
again.train(resume_from_checkpoint=True)
assert again.state.global_step == 4
"""

ACCELERATE = """
from accelerate import Accelerator
accelerator = Accelerator(cpu=True)
model = torch.nn.Linear(4, 1)
model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.1))
accelerator.backward(model(torch.ones(2, 4)).mean())
optimizer.step()
weight = model.weight.detach().clone()
accelerator.save_state(folder + "/state")
with torch.no_grad():
    model.weight.zero_()
optimizer.state.clear()
accelerator.load_state(folder + "/state")
assert torch.equal(model.weight, weight) and optimizer.state_dict()["state"][0]["step"] == 1
"""


@pytest.mark.parametrize("library, script", [("lightning", LIGHTNING), ("transformers", TRANSFORMERS), ("accelerate", ACCELERATE)],
                         ids=["lightning", "transformers", "accelerate"])
def test_a_library_saves_and_resumes_through_neve(tmp_path, library, script):
    pytest.importorskip(library, exc_type=ImportError)
    (tmp_path / "train.py").write_text(COUNT + script + "\nprint(calls)\nassert calls['save'] and calls['load']\n")
    done = subprocess.run([sys.executable, "-m", "neve", "run", tmp_path / "train.py", tmp_path / "out"], capture_output=True,
                          text=True, timeout=300, env=environment(tmp_path, HF_HUB_OFFLINE="1"))
    assert done.returncode == 0, done.stderr[-4000:]
    assert "torch's own" not in done.stderr, done.stderr
