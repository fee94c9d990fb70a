"""Save the demonstration model as a folder that ``transformers serve`` takes.

``python save_model.py FOLDER``. A model read from a GGUF file cannot be saved as it is: its weights
go into a plain model of the same configuration.
"""

import sys

from transformers import AutoModelForCausalLM

from llmtrace import demo


def main(folder):
    model, tokenizer = demo.load()
    config = model.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    plain = AutoModelForCausalLM.from_config(config)
    plain.load_state_dict(model.state_dict())
    plain.generation_config = model.generation_config
    plain.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    print(f"{demo.MODEL_NAME} is in {folder}")


if __name__ == "__main__":
    main(sys.argv[1])
