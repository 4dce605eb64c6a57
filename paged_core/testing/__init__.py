"""Seams for tests of plugins and engine. Plugin authors may use them; nothing in the product imports them.

tokenizer.ByteTokenizer      256 bytes, BOS, EOS and a few merged pieces; no files
build.build_engine           an Engine from an executor and plugin names, with a pool of exactly k blocks
shadow.ShadowExecutor        a "model" whose next token depends on every slot it reads through the block table
scripted.ScriptedExecutor    emits given pieces whatever the prompt
scripted.TableExecutor       logits come from a table; sampling is real
overlapped.Overlapped        takes two steps at a time over any of these, and audits what the engine does meanwhile
seams.PreemptNow             forces a preemption of a chosen request at a chosen step
seams.FaultyExecutor         fails at a chosen step
accelerator.FakeAccelerator  a device whose streams run their work as late, or in as odd an order, as events allow
attention.DeviceAttention    attention that looks at nothing but the arrays on the device
meta.MetaAccelerator         a device without numbers; `device_only` raises wherever the host would wait for one
tiny.write_tiny_llama        a random two-layer checkpoint on disk, for LLM(...)
"""
